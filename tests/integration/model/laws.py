"""What must be true of everything that can be observed, at every moment and between two moments.

Each law is a function that yields sentences about what breaks it. None of them knows how the orchestrator works: they
know what an operator and an agent were told, and the rules of `kici.engine`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from kici.engine.lifecycle import FAILED_JOB, ON_AGENT, TERMINAL_STEP, JobStatus, RunStatus, roll_up
from kici.engine.needs import Skip, Start, decide
from kici.orchestrator.lifecycle.concurrency import BY as BY_GROUP
from kici.orchestrator.maintenance.cancel_overdue_runs import BY as BY_TIME
from kici.wire.agent import JobAccepted, JobStatusChanged, StepStatusChanged
from tests.integration.model.agents import Frame, Ref
from tests.integration.model.database import Holder, Job, Snapshot
from tests.integration.model.messages import Tell
from tests.integration.model.workflows import GROUPS


class Ledger:
    """What was said to the orchestrator, and what it has acknowledged."""

    def __init__(self) -> None:
        self.deliveries: set[str] = set()
        """Acknowledged."""
        self.accepted: dict[str, int] = {}
        """Job → the highest attempt of which the acceptance is acknowledged."""
        self.ended: dict[str, tuple[int, str]] = {}
        """Job → attempt and status of its acknowledged end."""
        self.steps: dict[tuple[str, int, int], str] = {}
        """Acknowledged ends of steps."""
        self.told: defaultdict[Ref, set[str]] = defaultdict(set)
        """Ends of attempts that an agent has sent, acknowledged or not."""
        self.cancelled: set[str] = set()
        """Runs that somebody has asked to cancel."""
        self.too_long: set[str] = set()
        """Jobs and runs that ran, or waited in the queue, when their deadline passed."""
        self.dispatched: set[Ref] = set()
        self.passes = [0, 0]
        """Of dispatchers, between the last two moments: this time and the time before."""

    def told_of(self, frame: Frame) -> None:
        if isinstance(frame, JobStatusChanged):
            self.told[frame.job_id, frame.attempt].add(frame.status)

    def acknowledged(self, frame: Frame) -> None:
        match frame:
            case JobAccepted():
                self.accepted[frame.job_id] = max(self.accepted.get(frame.job_id, 0), frame.attempt)
            case JobStatusChanged(status=status) if status != "cancelling":
                self.ended[frame.job_id] = frame.attempt, status
            case StepStatusChanged(status=status) if status in TERMINAL_STEP:
                self.steps[frame.job_id, frame.attempt, frame.step_index] = status


def broken(now: Snapshot, before: Snapshot, ledger: Ledger) -> list[str]:
    """Everything that is wrong at this moment."""
    return [
        *_what_has_ended_stays(now, before),
        *_attempts_only_rise(now, before, ledger),
        *_what_has_begun_is_not_run_again_unasked(now, before),
        *_what_is_acknowledged_is_stored(now, ledger),
        *_nobody_invents_an_ending(now, ledger),
        *_a_run_is_the_sum_of_its_jobs(now),
        *_needs_decide(now),
        *_nothing_hangs(now),
        *_queue_rows_match_their_jobs(now),
        *_no_session_is_forgotten(now),
        *_steps_end_with_their_job(now),
        *_groups_are_kept(now),
        *_windows_are_kept(now),
    ]


def wrongly_refused(now: Snapshot, tell: Tell) -> Iterator[str]:
    """An agent that hears a refusal forgets the attempt: then nobody may go on waiting for it."""
    job, row = now.jobs[tell.frame.job_id], now.rows.get(tell.frame.job_id)
    owner = (tell.frame.attempt, tell.session_id)
    match tell.frame:
        case JobAccepted():
            still = row is not None and (row.attempt, row.session_id) == owner
        case JobStatusChanged(status=status) if status != "cancelling":
            still = not job.ended and (job.attempt, job.session_id) == owner
        case _:
            still = False
    if still:
        yield f"{tell} was refused, and yet {job} with {row}"


def unfinished(now: Snapshot) -> Iterator[str]:
    """What is wrong once everybody has done all that they can do."""
    for run in now.runs.values():
        if not run.ended:
            jobs = ", ".join(f"{job.job_name} {job.status}" for job in now.jobs_of(run.run_id))
            yield f"run {run.run_id} is {run.status} for ever: {jobs}"
    of_event = Counter(run.event_id for run in now.runs.values())
    for delivery in now.deliveries.values():
        if delivery.status != "processed" or of_event[delivery.event_id] != 1:
            yield f"{delivery.delivery_id} is {delivery.status} and has {of_event[delivery.event_id]} runs"
    yield from (f"the queue still has {row}" for row in now.rows.values())
    yield from (f"somebody is still in a group: {holder}" for holder in now.holders)


def _what_has_ended_stays(now: Snapshot, before: Snapshot) -> Iterator[str]:
    for run_id, run in before.runs.items():
        if run.ended and now.runs[run_id].status != run.status:
            yield f"run {run_id} was {run.status} and is {now.runs[run_id].status}"
    for job_id, job in before.jobs.items():
        then = now.jobs[job_id]
        if job.ended and (job.status, job.attempt) != (then.status, then.attempt):
            yield f"{job.job_name} was {job.status} at attempt {job.attempt} and is {then}"
    for key, status in before.steps.items():
        if status in TERMINAL_STEP and now.steps.get(key, "gone") != status:
            yield f"step {key} was {status} and is {now.steps.get(key, 'gone')}"


def _attempts_only_rise(now: Snapshot, before: Snapshot, ledger: Ledger) -> Iterator[str]:
    for job_id, job in now.jobs.items():
        was = before.jobs.get(job_id)
        if was is not None and job.attempt < was.attempt:
            yield f"{job.job_name} went back from attempt {was.attempt} to {job.attempt}"
    for job_id, row in now.rows.items():
        earlier = before.rows.get(job_id)
        if earlier is None:
            continue
        # One pass of a dispatcher gives out a job at most once; one of a killed process may commit a moment later.
        if not earlier.attempt <= row.attempt <= earlier.attempt + sum(ledger.passes):
            yield f"the row of {job_id} went from attempt {earlier.attempt} to {row.attempt}"


def _what_has_begun_is_not_run_again_unasked(now: Snapshot, before: Snapshot) -> Iterator[str]:
    for job_id, was in before.jobs.items():
        job = now.jobs[job_id]
        again = job.status is JobStatus.QUEUED or job.attempt > was.attempt
        if was.status in ON_AGENT and was.begun and was.attempts == 1 and again:
            yield f"its user code had begun, nobody allowed another attempt: {was}, {job}"


def _what_is_acknowledged_is_stored(now: Snapshot, ledger: Ledger) -> Iterator[str]:
    for delivery_id in ledger.deliveries - now.deliveries.keys():
        yield f"delivery {delivery_id} was acknowledged and is gone"
    for job_id, attempt in ledger.accepted.items():
        if now.jobs[job_id].attempt < attempt:
            yield f"acceptance {attempt} was acknowledged: {now.jobs[job_id]}"
    for job_id, (attempt, status) in ledger.ended.items():
        job = now.jobs[job_id]
        counts_as = "failed" if job.timed_out and status == "cancelled" else status
        if (job.attempt, job.status) != (attempt, counts_as):
            yield f"attempt {attempt} ended as {status}, acknowledged: {job}"
    for key, status in ledger.steps.items():
        if now.steps.get(key) != status:
            yield f"step {key} ended as {status}, acknowledged, and is {now.steps.get(key, 'nowhere')}"


def _nobody_invents_an_ending(now: Snapshot, ledger: Ledger) -> Iterator[str]:
    for job in now.jobs.values():
        if job.ended and not _is_justified(now, job, ledger):
            yield f"nobody said or decided that {job}"


def _is_justified(now: Snapshot, job: Job, ledger: Ledger) -> bool:
    if str(job.status) in ledger.told[job.job_id, job.attempt]:
        return True
    if job.reused_from is not None:
        return job.status == now.jobs[job.reused_from].status
    run = now.runs[job.run_id]
    match job.status:
        case JobStatus.FAILED:
            born = job.attempt == 0 and any(words in job.error for words in ("not there yet", "cannot be"))
            return born or "the last one" in job.error or (job.timed_out and job.job_id in ledger.too_long)
        case JobStatus.CANCELLED:
            by_somebody = run.cancelled_by == "test" and run.run_id in ledger.cancelled
            by_time = run.cancelled_by == BY_TIME and run.run_id in ledger.too_long
            by_another = run.cancelled_by == BY_GROUP
            return by_somebody or by_time or by_another or job.wave_fail_fast or job.concurrency_group is not None
        case JobStatus.SKIPPED:
            return isinstance(_verdict(now, job), Skip) or (job.wave_fail_fast and _sibling_failed(now, job))
        case JobStatus.TIMED_OUT_STALE:
            return job.job_id in ledger.too_long
        case JobStatus.INFRA_LOST:
            return job.attempt > 0
    return False


def _a_run_is_the_sum_of_its_jobs(now: Snapshot) -> Iterator[str]:
    jobs: defaultdict[str, list[Job]] = defaultdict(list)
    for job in now.jobs.values():
        jobs[job.run_id].append(job)
    for run in now.runs.values():
        statuses = [job.status for job in jobs[run.run_id]]
        if not statuses:
            yield f"run {run.run_id} has no jobs"
            continue
        expected = roll_up(statuses)
        if expected is None and run.ended:
            yield f"run {run.run_id} has ended as {run.status} with jobs {statuses}"
        if expected is not None and run.status != expected:
            yield f"run {run.run_id} is {run.status}, its jobs {statuses}"
        if run.status is RunStatus.PENDING and ON_AGENT & set(statuses):
            yield f"run {run.run_id} is pending, its jobs {statuses}"


def _verdict(now: Snapshot, job: Job) -> object:
    ended = {one.job_name: str(one.status) for one in now.jobs_of(job.run_id) if one.ended}
    return decide(now.needs.get(job.job_id, []), ended)


def _needs_decide(now: Snapshot) -> Iterator[str]:
    for job in now.jobs.values():
        if job.job_id not in now.needs or job.reused_from is not None:
            continue
        verdict = _verdict(now, job)
        if isinstance(verdict, Skip) and not job.ended:
            yield f"{job.job_name} is {job.status} although {verdict.reason}"
        if job.attempt and not isinstance(verdict, Start):
            yield f"{job.job_name} has begun although {verdict}"
        if job.status is JobStatus.QUEUED and not isinstance(verdict, Start):
            yield f"{job.job_name} is queued although {verdict}"


def _nothing_hangs(now: Snapshot) -> Iterator[str]:
    """Every open job has somebody or something that moves it on."""
    for job in now.jobs.values():
        row = now.rows.get(job.job_id)
        moved_on = {
            JobStatus.PENDING: _waits_for_something(now, job),
            JobStatus.QUEUED: row is not None and (row.session_id is None or row.ack_due),
            JobStatus.RUNNING: job.session_id is not None and not now.sessions[job.session_id].lost,
            JobStatus.RECOVERING: job.report_due,
            JobStatus.CANCELLING: job.cancel_due,
        }
        if not job.ended and not moved_on.get(job.status, False):
            yield f"nobody will ever move {job} with {row}"


def _waits_for_something(now: Snapshot, job: Job) -> bool:
    if any(holder.status == "queued" and _is_of(holder, job) for holder in now.holders):
        return True
    if job.wave_gated:
        return any(not one.ended and not one.wave_gated for one in _siblings(now, job))
    return not isinstance(_verdict(now, job), Start | Skip)


def _is_of(holder: Holder, job: Job) -> bool:
    return holder.run_id == job.run_id and holder.job_id in (None, job.job_id)


def _queue_rows_match_their_jobs(now: Snapshot) -> Iterator[str]:
    for job_id, row in now.rows.items():
        job = now.jobs[job_id]
        if job.status in ON_AGENT:
            right = row.accepted and (row.attempt, row.session_id) == (job.attempt, job.session_id)
        else:
            right = job.status is JobStatus.QUEUED and not row.accepted and row.attempt >= job.attempt
        if not right:
            yield f"{row} does not fit {job}"
    for job in now.jobs.values():
        if (job.status is JobStatus.QUEUED or job.status in ON_AGENT) and job.job_id not in now.rows:
            yield f"{job} has no row in the queue"


def _no_session_is_forgotten(now: Snapshot) -> Iterator[str]:
    """An attempt never belongs to a session that nobody watches any more."""
    for row in now.rows.values():
        if row.accepted and row.session_id is not None and now.sessions[row.session_id].closed:
            yield f"{row} belongs to a session that is closed"
    open_sessions = Counter(session.agent_id for session in now.sessions.values() if not session.closed)
    yield from (f"{agent} has {number} sessions" for agent, number in open_sessions.items() if number > 1)


def _steps_end_with_their_job(now: Snapshot) -> Iterator[str]:
    for (job_id, attempt, index), status in now.steps.items():
        job = now.jobs[job_id]
        if status not in TERMINAL_STEP and (job.ended or attempt < job.attempt):
            yield f"step {index} of attempt {attempt} is {status}: {job}"
    yield from (f"nobody will compact the log of step {step_id}" for step_id in now.uncompacted)


def _groups_are_kept(now: Snapshot) -> Iterator[str]:
    groups: defaultdict[tuple[str, str], list[Holder]] = defaultdict(list)
    for holder in now.holders:
        groups[holder.routing_key, holder.group_key].append(holder)
        if now.runs[holder.run_id].ended or (holder.job_id is not None and now.jobs[holder.job_id].ended):
            yield f"it has ended and is still in its group: {holder}"
    for (_, group), holders in groups.items():
        active = sum(holder.status == "active" for holder in holders)
        if active > GROUPS[group]:
            yield f"group {group} holds {active}: {holders}"
        if active < len(holders) and active < GROUPS[group]:
            yield f"group {group} has a free slot and somebody waits: {holders}"


def _windows_are_kept(now: Snapshot) -> Iterator[str]:
    windows: defaultdict[tuple[str, str], list[Job]] = defaultdict(list)
    for job in now.jobs.values():
        if job.wave_max_parallel is not None:
            windows[job.run_id, job.base_job_name].append(job)
    for (_, name), jobs in windows.items():
        at_once = [job for job in jobs if job.status is JobStatus.QUEUED or job.status in ON_AGENT]
        if len(at_once) > (jobs[0].wave_max_parallel or 0):
            yield f"{len(at_once)} of {name} at once, of {jobs[0].wave_max_parallel}"


def _siblings(now: Snapshot, job: Job) -> list[Job]:
    return [one for one in now.jobs_of(job.run_id) if one.base_job_name == job.base_job_name and one != job]


def _sibling_failed(now: Snapshot, job: Job) -> bool:
    return any(one.status in FAILED_JOB | {JobStatus.CANCELLED} for one in _siblings(now, job))
