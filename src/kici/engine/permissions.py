"""What the jobs of a workflow may do through the orchestrator. It, agents and `kici run local` ask here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kici.engine.lockfile import Level

KINDS: dict[str, tuple[Level, ...]] = {
    "artifacts": (Level.NONE, Level.READ, Level.WRITE),
    "caches": (Level.NONE, Level.READ, Level.WRITE),
    "events": (Level.NONE, Level.WRITE),
    "secret_outputs": (Level.NONE, Level.WRITE),
}
"""Of each kind the levels that there are; each lets what stands before it. What a job needs to run at all (its code,
its log, its outputs) is not among them."""
_ACTS = {
    ("artifacts", Level.READ): "download artifacts",
    ("artifacts", Level.WRITE): "upload artifacts",
    ("caches", Level.READ): "restore caches",
    ("caches", Level.WRITE): "save caches",
    ("events", Level.WRITE): "emit events",
    ("secret_outputs", Level.WRITE): "hand over secret outputs",
}
_ORDER = tuple(Level)


def refusal(workflow: str, given: Mapping[str, str] | None, kind: str, level: Level) -> str:
    """Why a job of the workflow may not do this; empty = it may. `given`: what the workflow says; None = nothing, and
    then its jobs may do everything. A kind or level that nobody knows gives nothing."""
    if given is None or _rank(given.get(kind, Level.NONE)) >= _ORDER.index(level):
        return ""
    return (
        f"the workflow {workflow!r} gives its jobs no permission to {_ACTS[kind, level]}:"
        f" permissions={{'{kind}': '{level.value}'}} does"
    )


def problems(given: Mapping[str, str] | None) -> Iterator[str]:
    """What cannot be so in a lock file."""
    for kind, level in (given or {}).items():
        if kind not in KINDS:
            yield f"has permissions of {kind!r}; there are {', '.join(KINDS)}"
        elif level not in KINDS[kind]:
            yield f"has permissions {kind} = {level!r}; it is one of {', '.join(KINDS[kind])}"


def _rank(level: str) -> int:
    return _ORDER.index(Level(level)) if level in _ORDER else -1
