"""How many children of one fanned-out job run at a time (`max_parallel`), and when the rest is given up (`fail_fast`).

The children are the combinations of one job's matrix in one run; their order is that of their position.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import Struct

from kici.engine.lifecycle import FAILED_JOB, TERMINAL_JOB, JobStatus


class Child(Struct, frozen=True):
    job_id: str
    position: int
    status: JobStatus
    ready: bool = True
    """Its needs are met."""
    gated: bool = False
    """It waits for a place in the window."""

    @property
    def has_place(self) -> bool:
        """From the moment that it may go on until it ends, also while it waits for something else."""
        return self.ready and not self.gated and self.status not in TERMINAL_JOB


_WORDS = {
    JobStatus.FAILED: "failed",
    JobStatus.CANCELLED: "was cancelled",
    JobStatus.TIMED_OUT_STALE: "was not taken by an agent in time",
    JobStatus.INFRA_LOST: "lost its machine",
}


def through(children: Iterable[Child], wanting: Collection[str], max_parallel: int) -> tuple[str, ...]:
    """Which of the children that want a place get one, the lowest positions first. Nobody of `wanting` has one yet."""
    known = sorted(children, key=lambda child: child.position)
    taken = sum(child.has_place for child in known if child.job_id not in wanting)
    free = max(max_parallel - taken, 0)
    return tuple([child.job_id for child in known if child.job_id in wanting][:free])


def halts(status: JobStatus) -> bool:
    """Whether a child that ended so ends a fan-out with `fail_fast`: a skipped one does not."""
    return status in FAILED_JOB or status is JobStatus.CANCELLED


def halted_because(name: str, status: JobStatus) -> str:
    return f"fan-out halted by fail_fast: {name} {_WORDS.get(status, f'ended as {status}')}"
