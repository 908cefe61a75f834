"""Follows a run to its end over Server-sent events, across lost connections and restarted orchestrators."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from kici.cli.client import Client, Refused, Unreachable, segment
from kici.wire import api

PATIENCE_S = 60.0
"""How long an orchestrator may be away."""

Happening: TypeAlias = api.Run | api.Job | api.StepChanged | api.LogLines | api.StreamEnd

_TYPES: dict[str, type[Happening]] = {
    "run": api.Run,
    "job": api.Job,
    "step": api.StepChanged,
    "log": api.LogLines,
    "end": api.StreamEnd,
}
_AWAY = frozenset({502, 503, 504})


def follow(
    client: Client,
    run_id: str,
    *,
    logs: bool,
    patience_s: float = PATIENCE_S,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Happening]:
    """The present state, then what happens, `StreamEnd` last. Every log line comes once."""
    seen: dict[tuple[str, int, int], int] = {}
    heard = clock()
    while True:
        try:
            with client.events(f"/runs/{segment(run_id)}/stream", {"logs": 1} if logs else None) as events:
                for name, data in events:
                    heard = clock()
                    if name not in _TYPES:
                        continue
                    happening: Happening | None = msgspec.json.decode(data, type=_TYPES[name])
                    if isinstance(happening, api.LogLines):
                        happening = _unseen(happening, seen)
                    if happening is not None:
                        yield happening
                    if isinstance(happening, api.StreamEnd):
                        return
        except Unreachable:
            if clock() - heard > patience_s:
                raise
        except Refused as refused:
            if refused.status not in _AWAY or clock() - heard > patience_s:
                raise
        pause(0.5)


def _unseen(new: api.LogLines, seen: dict[tuple[str, int, int], int]) -> api.LogLines | None:
    """What of these lines has not come before."""
    key = (new.job_id, new.attempt, new.step_index)
    skip = max(0, seen.get(key, 0) - new.first_line)
    if skip >= len(new.lines):
        return None
    seen[key] = new.first_line + len(new.lines)
    return msgspec.structs.replace(new, first_line=new.first_line + skip, lines=new.lines[skip:])
