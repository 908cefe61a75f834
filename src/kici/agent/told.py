"""What a step asks the orchestrator to keep: secret outputs and events. Small, and safe to ask for twice."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from kici.agent.errors import TransferFailed
from kici.agent.job_api import JobApi
from kici.wire.api import Emit, Emitted

MAX_SECRET_BYTES = 65_536
MAX_EVENTS = 100
"""Of one attempt."""


async def hand_over(api: JobApi, name: str, value: str) -> None:
    """Keep a secret output. Raises `TransferFailed`, which never says the value."""
    what = f"secret output {name[:100]!r} was not kept"
    data = value.encode(errors="replace")
    if len(data) > MAX_SECRET_BYTES:
        raise TransferFailed(f"{what}: it has {len(data):,} bytes; the limit is {MAX_SECRET_BYTES:,}")
    await api.repeated("PUT", f"secret-outputs/{quote(name, safe='')}", what, content=data)


async def emit(api: JobApi, name: str, payload: Any, key: str) -> str:
    """The id of the event. Raises `TransferFailed`."""
    what = f"event {name[:200]!r} was not emitted"
    try:
        body = msgspec.json.encode(Emit(name, payload, key))
    except (TypeError, ValueError) as error:
        raise TransferFailed(f"{what}: its payload is not JSON: {error}") from error
    response = await api.repeated("POST", "events", what, content=body, headers={"content-type": "application/json"})
    return msgspec.json.decode(response.content, type=Emitted).event_id
