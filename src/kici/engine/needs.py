"""When a job that needs others may start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct


class Need(Struct, frozen=True):
    """One other job, and the endings of it that let this job start."""

    job: str
    run_on: frozenset[str] = frozenset({"success"})


class Wait(Struct, frozen=True, tag=True):
    jobs: tuple[str, ...]


class Start(Struct, frozen=True, tag=True):
    pass


class Skip(Struct, frozen=True, tag=True):
    reason: str


Verdict = Wait | Start | Skip


def decide(needs: Iterable[Need], endings: Mapping[str, str]) -> Verdict:
    """Say whether a job waits for others, starts, or is skipped. `endings` holds the jobs that have ended.

    One unmet need settles it, whatever the others still do, so a job once started or skipped stays so as more jobs end.
    """
    running, unmet = [], []
    for need in needs:
        ending = endings.get(need.job)
        if ending is None:
            running.append(need.job)
        elif ending not in need.run_on:
            unmet.append(f"{need.job} ended as {ending} (needed {' or '.join(sorted(need.run_on))})")
    if unmet:
        return Skip("; ".join(sorted(unmet)))
    return Wait(tuple(sorted(running))) if running else Start()
