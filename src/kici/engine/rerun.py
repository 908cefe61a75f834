"""Which jobs of a run are run again, and which are taken over as they ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from kici.engine.lifecycle import JobStatus

Mode: TypeAlias = Literal["all", "failed", "job"]

_FINE = frozenset({JobStatus.SUCCESS, JobStatus.SKIPPED})


class JobOfRun(Struct, frozen=True):
    name: str
    base: str
    """Without the matrix suffix."""
    needs: Collection[str] = ()
    """Names of other jobs of the run."""


def to_run(jobs: Sequence[JobOfRun], endings: Mapping[str, JobStatus], mode: Mode, chosen: str = "") -> frozenset[str]:
    """Names of the jobs to run again. `endings` holds how the earlier run's jobs ended, those that may be taken over.

    `failed`: the jobs that did not succeed. A skipped one is not among them, unless it belongs to a fan-out in which
    another one is: it was halted. A job that was skipped for what it needs would be skipped again, or needs one of
    these. `job`: the one called `chosen`, or all combinations of that name. In both cases with all that need one of
    them, directly or not, and with every job that has no ending to take over.
    """
    if mode == "all":
        return frozenset(job.name for job in jobs)
    seeds = {job.name for job in jobs if job.name not in endings}
    if mode == "job":
        seeds |= {job.name for job in jobs if chosen in (job.name, job.base)}
    else:
        seeds |= {name for name, ending in endings.items() if ending not in _FINE}
        halted = {job.base for job in jobs if job.name in seeds}
        seeds |= {job.name for job in jobs if job.base in halted and endings.get(job.name) is JobStatus.SKIPPED}
    return _with_dependants(jobs, seeds & {job.name for job in jobs})


def _with_dependants(jobs: Iterable[JobOfRun], seeds: Collection[str]) -> frozenset[str]:
    needing: dict[str, list[str]] = {}
    for job in jobs:
        for need in job.needs:
            needing.setdefault(need, []).append(job.name)
    found: set[str] = set()
    todo = list(seeds)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += needing.get(name, ())
    return frozenset(found)
