"""Jobs that want a label which nothing here could offer: said at once, not after an hour of waiting."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from kici.engine import waiting
from kici.engine.lifecycle import JobStatus
from kici.orchestrator.store import known_labels
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.known_labels import KnownLabels
from kici.orchestrator.store.runs import NewJob

CATEGORY = "no_matching_agent"


class Labels(Struct, frozen=True):
    known: KnownLabels
    fail: bool = False
    """End such a job at once; else it waits, as an operator may still add an agent."""


async def check(db: Db, labels: Labels, jobs: Sequence[NewJob]) -> tuple[list[NewJob], list[str]]:
    """The jobs as they are to be made, and a sentence for each that wants such a label."""
    wanted = {label for job in jobs for label in job.requirement.labels}
    known = await labels.known.among(db, wanted)
    checked, told = [], []
    for job in jobs:
        lacking = waiting.never_offered(job.requirement, known) if job.status is JobStatus.PENDING else ()
        if lacking:
            why = waiting.unservable(lacking, known, days=known_labels.DAYS)
            told.append(f"job {job.name}: {why}")
            if labels.fail:
                job = replace(job, problem=why, problem_category=CATEGORY)
        checked.append(job)
    return checked, told
