"""Jobs that came of a generator, or of a dynamic job, in an earlier run: a rerun takes them as they were made, without
asking anybody's functions again.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from kici.engine import labels, rules
from kici.engine.evaluation import init_name
from kici.engine.events import Event
from kici.engine.expansion import rewired
from kici.engine.lifecycle import JobStatus
from kici.engine.plan import PlannedJob, PlannedNeed
from kici.orchestrator.lifecycle.new_jobs import new_job
from kici.orchestrator.store.reruns import OriginalJob
from kici.orchestrator.store.runs import NewJob, NewNeed


def restorable(new: Sequence[NewJob], earlier: Sequence[OriginalJob]) -> frozenset[str]:
    """Names of the stand-ins whose jobs the earlier run had, of the same definition, and which can be read."""
    by_name = {job.name: job for job in earlier}
    found = set()
    for stand_in in new:
        if stand_in.seed is None:
            continue
        asked = by_name.get(init_name(stand_in.name))
        left = by_name.get(stand_in.name)
        if (
            asked is not None
            and asked.status is JobStatus.SUCCESS
            and asked.definition == _definition_of(new, init_name(stand_in.name))
            and (left is None or left.made_by == stand_in.name)
            and all(job.definition is not None for job in earlier if job.made_by == stand_in.name)
        ):
            found.add(stand_in.name)
    return _whole(new, earlier, found)


def restored(
    new: Sequence[NewJob], earlier: Sequence[OriginalJob], stand_ins: Collection[str], event: Event
) -> list[NewJob]:
    """The plan with the recorded jobs in place of these stand-ins; whoever needs one of those needs its jobs."""
    products = {name: [job for job in earlier if job.made_by == name] for name in stand_ins}
    ids = {job.name: job.job_id for job in new if job.name not in products}
    ids |= {job.name: str(uuid.uuid4()) for several in products.values() for job in several}
    found: list[NewJob] = []
    for job in new:
        if job.name in products:
            found += [new_job(_planned(one, event), ids) for one in products[job.name]]
        else:
            found.append(_rewired(job, products, ids))
    return found


def _whole(new: Sequence[NewJob], earlier: Sequence[OriginalJob], stand_ins: Collection[str]) -> frozenset[str]:
    """Those of these stand-ins whose jobs need only what the rerun has, too."""
    left = set(stand_ins)
    while True:
        there = {job.name for job in new if job.name not in left} - {job.name for job in new if job.seed is not None}
        there |= {job.name for job in earlier if job.made_by in left}
        torn = {job.made_by for job in earlier if job.made_by in left and not there.issuperset(job.needs)}
        if not torn:
            return frozenset(left)
        left -= torn


def without(
    new: Sequence[NewJob], earlier: Sequence[OriginalJob], stand_ins: Collection[str], asked: Collection[str]
) -> frozenset[str]:
    """Those that are left when these are asked anew: what needs a job of theirs is asked anew, too."""
    return _whole(new, earlier, set(stand_ins) - set(asked))


def _definition_of(new: Sequence[NewJob], name: str) -> object:
    return next((job.definition for job in new if job.name == name), None)


def _planned(job: OriginalJob, event: Event) -> PlannedJob:
    """Its values are those that were filled in; its rules are asked again, of the same event."""
    definition = job.definition
    assert definition is not None
    return PlannedJob(
        name=job.name,
        job=definition,
        matrix=job.matrix,
        position=job.position,
        needs=tuple(PlannedNeed(name, frozenset(run_on)) for name, run_on in job.needs.items()),
        requirement=labels.of_job(definition),
        env=definition.env,
        environment=definition.environment or "",
        concurrency_group=job.concurrency_group,
        problem=job.problem,
        skip=rules.decide(definition.rules, event.changed_files).reason,
        generated_by=job.generated_by,
        carried=True,
    )


def _rewired(job: NewJob, products: Mapping[str, Sequence[OriginalJob]], ids: Mapping[str, str]) -> NewJob:
    needs = tuple(PlannedNeed(need.upstream_name, frozenset(need.run_on)) for need in job.needs)
    for stand_in, several in products.items():
        needs = rewired(needs, stand_in, [one.name for one in several])
    connected = tuple(NewNeed(ids[need.upstream], need.upstream, tuple(sorted(need.run_on))) for need in needs)
    return replace(job, needs=connected)
