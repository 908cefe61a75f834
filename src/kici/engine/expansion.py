"""What becomes of a stand-in once its evaluation has succeeded. The orchestrator and `kici run local` share it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from kici.engine import evaluation, rules
from kici.engine.circles import circle
from kici.engine.errors import EngineError, EvaluationError
from kici.engine.evaluation import MAX_JOBS, Evaluated
from kici.engine.events import Event
from kici.engine.lockfile import LockJob
from kici.engine.plan import MAX_JOBS_PER_RUN, PlannedJob, PlannedNeed, Seed, fan_out
from kici.engine.validation import job_problems

_SHOWN = 5


class Known(Struct, frozen=True):
    """A job of the run as it stands, stand-ins too."""

    name: str
    base: str
    """Without the matrix suffix."""
    needs: tuple[str, ...] = ()
    """Names."""
    generated_by: str = ""


class StandIn(Struct, frozen=True):
    name: str
    position: int
    needs: tuple[PlannedNeed, ...]
    """All of them, the evaluation too."""
    seed: Seed


class Expansion(Struct, frozen=True):
    jobs: tuple[PlannedJob, ...] = ()
    """In place of the stand-in; none: an empty group."""
    problem: str = ""
    """Set: there are no jobs, and the stand-in fails with this sentence."""
    warnings: tuple[str, ...] = ()


def expand(stand_in: StandIn, event: Event, result: object, known: Sequence[Known]) -> Expansion:
    """`result` is the output of the evaluation's step. `known` are all jobs of the run.

    What comes of it needs what the stand-in needed, which has ended, and what it says itself.
    """
    try:
        found = evaluation.unpack(result)
        jobs = _jobs(stand_in, found)
        _check(stand_in, jobs, known)
        planned, warnings = _planned(stand_in, jobs, event)
        connected = tuple(_connected(stand_in, planned, known))
        _check_whole(stand_in, connected, known)
    except EngineError as error:
        return Expansion(problem=str(error))
    return Expansion(connected, warnings=tuple(warnings))


def rewired(needs: Sequence[PlannedNeed], stand_in: str, jobs: Collection[str]) -> tuple[PlannedNeed, ...]:
    """The needs of a job once these jobs stand in place of the stand-in: in its place, each once, all others as they
    were. A need that names one of the jobs itself counts before that on the group."""
    own = {need.upstream for need in needs}
    found: list[PlannedNeed] = []
    for need in needs:
        if need.upstream == stand_in:
            found += (PlannedNeed(name, need.run_on) for name in jobs if name not in own)
        else:
            found.append(need)
    return tuple(found)


def _jobs(stand_in: StandIn, found: Evaluated) -> list[LockJob]:
    """Raises `EvaluationError`."""
    job = stand_in.seed.job
    if job is not None:
        return [evaluation.filled(job, found.values)]
    if len(found.jobs) > MAX_JOBS:
        raise EvaluationError(
            f"generator {stand_in.name!r} made {len(found.jobs)} jobs; the limit is {MAX_JOBS}: make fewer, or give"
            " them a matrix"
        )
    return [evaluation.filled(one.job, one.values) for one in found.jobs]


def _check(stand_in: StandIn, jobs: Sequence[LockJob], known: Iterable[Known]) -> None:
    """That each job may be so in this run. Raises `EvaluationError` with what is wrong, one sentence each."""
    seed = stand_in.seed
    problems = []
    names = [job.name for job in jobs]
    if seed.job is None:
        taken = {one.base for one in known} | set(seed.generators)
        problems += [
            f"two of its jobs are called {name!r}" for name in sorted({n for n in names if names.count(n) > 1})
        ]
        problems += [f"job {name!r}: the run has one of that name already" for name in names if name in taken]
        may_need = (taken | set(names)) - {stand_in.name}
        for job in jobs:
            problems += [f"job {job.name!r} needs {stand_in.name!r}, to which it belongs"] * _needs(job, stand_in.name)
            others = [need for need in job.needs if need.job != stand_in.name]
            problems += job_problems(replace(job, needs=tuple(others)), seed.frame.env, may_need)
    else:
        problems += job_problems(replace(jobs[0], needs=()), seed.frame.env, ())
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        subject = f"generator {stand_in.name!r}: " if seed.job is None else ""
        raise EvaluationError(f"{subject}{'; '.join(problems[:_SHOWN])}{more}")


def _needs(job: LockJob, name: str) -> bool:
    return any(need.job == name for need in job.needs)


def _planned(stand_in: StandIn, jobs: Iterable[LockJob], event: Event) -> tuple[dict[str, list[PlannedJob]], list[str]]:
    """Base name → the job, or its combinations; and warnings."""
    seed = stand_in.seed
    generated_by = stand_in.name if seed.job is None else ""
    planned, warnings = {}, []
    for job in jobs:
        verdict = rules.decide(job.rules, event.changed_files)
        if verdict.warning and seed.job is None:  # of a dynamic job the plan has said it
            warnings.append(f"job {job.name!r}: {verdict.warning}")
        planned[job.name] = [
            replace(one, skip=verdict.reason, generated_by=generated_by, carried=True)
            for one in fan_out(seed.frame, job, event)
        ]
    return planned, warnings


def _connected(
    stand_in: StandIn, planned: Mapping[str, Sequence[PlannedJob]], known: Sequence[Known]
) -> Iterator[PlannedJob]:
    init = evaluation.init_name(stand_in.name)
    inherited = [need for need in stand_in.needs if need.upstream != init]
    groups = stand_in.seed.generators
    names: dict[str, list[str]] = {}
    for one in known:
        names.setdefault(one.base, []).append(one.name)
        if one.generated_by:
            names.setdefault(one.generated_by, []).append(one.name)
    names |= {base: [one.name for one in several] for base, several in planned.items()}
    position = stand_in.position
    for several in planned.values():
        for job in several:
            needs = {need.upstream: need for need in inherited}
            # The job that needs a group and one of its jobs means the latter as it says; and both before what it has
            # from its generator.
            for need in sorted(job.job.needs, key=lambda need: need.job not in groups) if job.generated_by else ():
                needs |= {name: PlannedNeed(name, frozenset(need.run_on)) for name in names.get(need.job, ())}
            yield replace(job, position=position, needs=tuple(needs.values()))
            position += 1


def _check_whole(stand_in: StandIn, jobs: Sequence[PlannedJob], known: Sequence[Known]) -> None:
    """That they fit into the run. Raises `EvaluationError`."""
    others = [one for one in known if one.name != stand_in.name]
    total = len(others) + len(jobs)
    if total > MAX_JOBS_PER_RUN:
        raise EvaluationError(
            f"with the {len(jobs)} jobs of {stand_in.name!r} the run has {total} jobs; the limit is {MAX_JOBS_PER_RUN}"
        )
    names = [job.name for job in jobs]
    taken = {one.name for one in others}
    twice = sorted({name for name in names if name in taken or names.count(name) > 1})
    if twice:
        raise EvaluationError(f"{stand_in.name!r}: the run has a job called {twice[0]!r} already")
    needs: dict[str, list[str]] = {
        one.name: [name for need in one.needs for name in (names if need == stand_in.name else [need])]
        for one in others
    }
    needs |= {job.name: [need.upstream for need in job.needs] for job in jobs}
    found = circle(needs)
    if found:
        raise EvaluationError(f"{stand_in.name!r}: jobs need each other in a circle: {' → '.join(found)}")
