"""What the hot statements outside of the queue cost beside a million rows of history.

`tests/unit/store/test_every_statement_has_a_plan.py` says which functions must stand here or in another plan test.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
from asyncpg import Pool, Record
from msgspec import Struct

from kici.engine.concurrency import Policy
from kici.engine.events import Event, EventType
from kici.engine.labels import Requirement
from kici.engine.lifecycle import RunStatus, StepStatus
from kici.orchestrator.errors import Conflict
from kici.orchestrator.store import (
    artifacts,
    caused,
    completions,
    concurrency,
    coordinators,
    deadlines,
    event_claims,
    events,
    jobs,
    label_sets,
    lease,
    logs,
    needs,
    outages,
    outbox,
    queue_rules,
    reruns,
    reuse,
    run_states,
    runs,
    sessions,
    steps,
    tokens,
)
from kici.orchestrator.store.concurrency import Arrival, Group
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.event_claims import Claim, Ended
from kici.orchestrator.store.events import NewEvent
from kici.orchestrator.store.runs import NewJob, NewNeed, NewRun
from kici.orchestrator.store.sessions import Silent
from kici.orchestrator.store.steps import StepWrite
from kici.orchestrator.store.views import agents as agents_view
from kici.orchestrator.store.views import concurrency as concurrency_view
from kici.orchestrator.store.views import event_log as event_log_view
from kici.orchestrator.store.views import runs as runs_view
from tests.support.explain import explained
from tests.support.locks import job
from tests.support.million import BESIDE, LOG_CHUNKS, LOG_HOUR, SESSION, TABLES

GROWING = (*TABLES, *BESIDE, LOG_CHUNKS, "agent_sessions")
RUN = "0000000c-0000-4000-8000-000000000007"
"""In the past, with one job of two steps whose id is the same, and 1,000 chunks of the first step."""
JOB = RUN
OPEN_RUN = "0000000a-0000-4000-8000-000000000001"
EVENT = "0000000d-0000-4000-8000-000000000007"
OPEN_JOB = "0000000b-0000-4000-8000-000000000000"
HOUR = datetime.fromisoformat(LOG_HOUR)
NOW = datetime.now(UTC)
SECOND = timedelta(seconds=1)
GROUP = Group("k::team/app-7", "g-7")
CLAIM = Claim(
    event_id=EVENT,
    attempt=1,
    org_id="default",
    delivery_id="old-7",
    routing_key="k",
    provider="local",
    event_name="push",
    headers={},
    body=None,
    received_at=NOW,
    last_error=None,
)


def outbox_claim(number: int = 100) -> outbox.Claim:
    return outbox.Claim(number, str(number), {}, 1, 0.0)


STEP = logs.Step(
    id=str(uuid.UUID(int=0)),
    run_id=RUN,
    job_id=JOB,
    job_name="build",
    attempt=1,
    step_index=0,
    step_name="step",
    status="success",
    began=True,
    ended_at=NOW,
    log_chunks=1_000,
    log_path=None,
    log_lines=None,
    log_hour=HOUR,
    shown_job_id=JOB,
)


def sent(count: int) -> list[logs.Sent]:
    return [
        logs.Sent(SESSION, f"0000000c-0000-4000-8000-{number % 8 + 1:012x}", 1, 0, 5_000 + number, 0, 1, b"x" * 200)
        for number in range(count)
    ]


def new_event() -> NewEvent:
    return NewEvent(
        id=str(uuid.uuid4()),
        delivery_id=uuid.uuid4().hex,
        routing_key="k",
        event="push",
        action="",
        provider="local",
        headers={},
        repo="team/app-0",
        ref="refs/heads/main",
        content_type="application/json",
        size=2,
        sha256="",
        body=b"{}",
    )


def new_run() -> tuple[NewRun, list[NewJob]]:
    run = NewRun(
        run_id=str(uuid.uuid4()),
        event_id=None,
        workflow_name="ci",
        provider="local",
        routing_key="k",
        repo="team/app-0",
        ref="refs/heads/main",
        sha="a" * 40,
        workflow_sha="a" * 40,
        clone_url="",
        event=Event(EventType.PUSH),
        delivery_id="",
        trigger_event="push",
    )
    ids = [str(uuid.uuid4()) for _ in range(4)]
    made = [
        NewJob(
            job_id=job_id,
            name=f"job-{number}",
            base_name=f"job-{number}",
            position=number,
            definition=job(f"job-{number}"),
            matrix={},
            needs=tuple(NewNeed(upstream, "x", ("success",)) for upstream in ids[:number]),
            requirement=Requirement(("kici:os:linux",)),
        )
        for number, job_id in enumerate(ids)
    ]
    return run, made


async def create_run(db: Db) -> object:
    return await runs.create(db, *new_run())


async def guarded(db: Db) -> None:
    with pytest.raises(event_claims.ClaimLost):
        await event_claims.guard(db, CLAIM)


async def taking_over(db: Db) -> None:
    """Its first part; the others stand in `test_rerun_plans`."""
    with pytest.raises(Conflict):  # EXPLAIN does not tell how many rows were written
        await reuse.take_over(db, {OPEN_JOB: JOB})


async def led(db: Db) -> None:
    held = await lease.acquire(db, "maintenance", "here", SECOND)
    assert held
    await lease.guard(db, held)
    await lease.release(db, held)


Statement = Callable[[Db], Awaitable[object]]


class Case(Struct, frozen=True):
    run: Statement
    pages: int = 60
    answering: bool = False
    """It goes on from what the database answers."""


STATEMENTS: dict[str, Case] = {
    # events
    "a batch of events": Case(lambda db: events.insert_batch(db, [new_event() for _ in range(4)]), 200),
    "one event": Case(lambda db: events.read(db, EVENT), answering=True),
    "a claim of events": Case(lambda db: event_claims.claim(db, "a", 15 * SECOND, 8)),
    "renewing a claim": Case(lambda db: event_claims.renew(db, CLAIM, 15 * SECOND)),
    "a guarded claim": Case(guarded),
    "ending an event": Case(lambda db: event_claims.end(db, CLAIM, Ended(status="processed")), answering=True),
    "trying an event later": Case(lambda db: event_claims.try_later(db, CLAIM, SECOND, "x")),
    "giving events back": Case(lambda db: event_claims.give_back(db, "a")),
    "bodies to move": Case(lambda db: event_claims.processed_bodies(db, 16)),
    "a moved body": Case(lambda db: event_claims.body_moved(db, EVENT, "key")),
    "a known delivery": Case(lambda db: event_claims.find_delivery(db, "old-7")),
    # runs
    "a commit's lock": Case(lambda db: runs.lock_commit(db, "team/app-0", "a"), 10),
    "the lock of what a workflow causes": Case(lambda db: caused.lock(db, caused.Cause("k", "team/app-0", "ci")), 10),
    "ends of runs to tell": Case(lambda db: completions.of_runs(db, [RUN]), 200),
    "ends of jobs to tell": Case(lambda db: completions.of_jobs(db, [JOB]), 200),
    "a new run": Case(create_run, 400, answering=True),
    "locking runs": Case(lambda db: run_states.lock(db, [RUN, OPEN_RUN])),
    "scopes of runs": Case(lambda db: run_states.scopes(db, [RUN])),
    "cancelling a run": Case(lambda db: run_states.cancelling(db, OPEN_RUN, by="me", reason="x")),
    "a run's status": Case(lambda db: run_states.set_status(db, OPEN_RUN, RunStatus.RUNNING)),
    "taking over an ended job": Case(taking_over, 200),
    "names of a run's jobs": Case(lambda db: reruns.names(db, RUN)),
    # jobs
    "locking jobs": Case(lambda db: jobs.lock(db, [JOB])),
    "holding jobs back": Case(lambda db: jobs.hold_back(db, [JOB], [JOB])),
    "jobs of sessions": Case(lambda db: jobs.of_sessions(db, [SESSION])),
    "user code began": Case(lambda db: jobs.user_code_began(db, [JOB])),
    "putting jobs into the queue": Case(lambda db: jobs.enqueue(db, [JOB])),
    "putting jobs back": Case(lambda db: jobs.requeue(db, [JOB])),
    "asking jobs to stop": Case(lambda db: jobs.cancelling(db, [JOB], force=False, margin_s=10)),
    "losing sight of jobs": Case(lambda db: jobs.recovering(db, [JOB], heard_s=1, retry_s=1, report_s=1), 120),
    "seeing jobs again": Case(lambda db: jobs.resume(db, [JOB], SESSION)),
    "what agents are to stop": Case(lambda db: jobs.to_stop(db, [SESSION])),
    "jobs past a deadline": Case(lambda db: jobs.find_overdue(db, 15 * SECOND, 200)),
    "which deadline": Case(lambda db: jobs.past_deadlines(db, [JOB])),
    "time-outs that have passed": Case(lambda db: deadlines.passed(db, [JOB], 1_000)),
    "timing out": Case(lambda db: deadlines.time_out(db, {JOB: "x"})),
    "forcing": Case(lambda db: deadlines.force(db, [JOB], margin_s=1)),
    "who depends on jobs": Case(lambda db: needs.dependants(db, [JOB])),
    "what jobs wait for": Case(lambda db: needs.open_upstream(db, [JOB])),
    # groups
    "locking groups": Case(lambda db: concurrency.lock_scopes(db, ["a", "b"]), 20),
    "trying to lock groups": Case(lambda db: concurrency.try_lock_scopes(db, ["a", "b"]), 20),
    "joining a group": Case(
        lambda db: concurrency.insert(db, [Arrival(str(uuid.uuid4()), GROUP, OPEN_RUN, None, Policy(), starts=True)]),
        200,
    ),
    "starting in a group": Case(lambda db: concurrency.activate(db, [RUN])),
    "leaving a group": Case(lambda db: concurrency.close(db, [RUN])),
    "leaving groups with runs": Case(lambda db: concurrency.close_runs(db, [RUN])),
    "leaving groups with jobs": Case(lambda db: concurrency.close_jobs(db, [JOB], [RUN])),
    "policies of jobs": Case(lambda db: concurrency.policies_of_jobs(db, [JOB])),
    # steps
    "writing steps": Case(lambda db: steps.write(db, [StepWrite(JOB, RUN, 1, 0, "step", StepStatus.SUCCESS)])),
    "steps of a new attempt": Case(lambda db: steps.begin_attempt(db, [(JOB, 2)])),
    # logs
    "chunks": Case(lambda db: logs.append(db, sent(64)), 1_500),
    "hours of jobs": Case(lambda db: logs.hours_of(db, [JOB])),
    "a step, for its log": Case(lambda db: logs.step(db, JOB, 0)),
    "a step by its id": Case(lambda db: logs.step_by_id(db, JOB)),
    "how far a log reaches": Case(lambda db: logs.extent(db, STEP), 300, answering=True),
    "a page of a log": Case(lambda db: logs.chunks_with_lines(db, STEP, 5_000, 5_500, 256), 150),
    "the tail of a log": Case(lambda db: logs.chunks_from(db, STEP, 990, 32), 40),
    "how many chunks": Case(lambda db: logs.count(db, STEP), 300, answering=True),
    "holding a log to close it": Case(lambda db: logs.hold_to_close(db, JOB)),
    "closing a log": Case(lambda db: logs.close(db, JOB, path="p", lines=1, size=1)),
    # the outbox
    "asking for work": Case(lambda db: outbox.put(db, "compact_log", "x", dedupe_key="x")),
    "a claim of work": Case(lambda db: outbox.claim(db, "compact_log", 8, hold_s=60), 250),
    "work that is done": Case(lambda db: outbox.done(db, outbox_claim())),
    "work that waits": Case(lambda db: outbox.give_back(db, outbox_claim(), 1)),
    "work that failed": Case(lambda db: outbox.fail(db, outbox_claim(), "x", 1)),
    "when work is due": Case(lambda db: outbox.next_due_s(db, "compact_log")),
    # agents and coordinators
    "the own lease": Case(lambda db: sessions.hold_lease(db, "here"), 20, answering=True),
    "renewing the own lease": Case(
        lambda db: coordinators.renew(db, "here", 15 * SECOND, version="t", url="u"), 20, answering=True
    ),
    "forgetting coordinators": Case(lambda db: coordinators.forget(db, gone_for=timedelta(days=7)), 20),
    "living coordinators": Case(lambda db: coordinators.living(db), 20),
    "whether an outage is over": Case(lambda db: outages.just_over(db, "here", 15 * SECOND), 20),
    "a leader's lease": Case(led, 30, answering=True),
    "sessions of an agent": Case(lambda db: sessions.lock_agent(db, "agent-1")),
    "locking sessions": Case(lambda db: sessions.lock(db, [SESSION])),
    "a lost session": Case(lambda db: sessions.lose(db, SESSION, heard_s=1)),
    "a session that is heard again": Case(lambda db: sessions.regain(db, [SESSION])),
    "a session that drains": Case(lambda db: sessions.set_draining(db, SESSION, True)),
    "a session without room": Case(lambda db: sessions.set_not_taking(db, SESSION, "disk: full")),
    "closing sessions": Case(lambda db: sessions.close(db, [SESSION])),
    "sessions of dead coordinators": Case(lambda db: sessions.find_silent(db, 200), 200),
    "settled sessions": Case(lambda db: sessions.close_settled(db, lost_for_s=120), 200, answering=True),
    "whether a session is still silent": Case(
        lambda db: sessions.still_silent(db, Silent(SESSION, "agent-1", "here", 1.0))
    ),
    "forgetting sessions": Case(lambda db: sessions.forget(db, closed_for=timedelta(days=7), batch=100), 2_000),
    "sessions that are there": Case(lambda db: sessions.present(db, [SESSION])),
    "when sessions were heard": Case(lambda db: sessions.heard(db, [SESSION])),
    "label sets": Case(lambda db: label_sets.read(db, [1, 2]), 20),
    "ids of label sets": Case(
        lambda db: label_sets.ids_of(db, {"linux": Requirement(("kici:os:linux",))}), 20, answering=True
    ),
    "a pause that ends": Case(lambda db: queue_rules.resume(db, "repository", "x"), 20),
    # tokens
    "an administrator's token": Case(lambda db: tokens.find_admin(db, "x"), 20),
    "an agent's token": Case(lambda db: tokens.find_agent(db, "x"), 20),
    "a job's token": Case(lambda db: tokens.find_job(db, "hash-1")),
    "revoked tokens": Case(lambda db: tokens.not_valid(db, [str(uuid.uuid4())]), 20),
    # artifacts
    "an artifact": Case(lambda db: artifacts.find(db, RUN, "wheel")),
    "artifacts of a run": Case(lambda db: artifacts.of_run(db, RUN)),
    # pages
    "agents": Case(lambda db: agents_view.listed(db), 800),
    "groups": Case(lambda db: concurrency_view.listed(db, concurrency_view.Filter(), 100)),
    "deliveries": Case(lambda db: event_log_view.listed(db, event_log_view.Filter(), 50, 0), 200),
    "how many deliveries": Case(
        lambda db: event_log_view.count(db, event_log_view.Filter(), up_to=1_000), 1_200, answering=True
    ),
    "newest runs": Case(lambda db: runs_view.listed(db, runs_view.Filter(), 20, 0), 300),
    "runs of a repository": Case(lambda db: runs_view.listed(db, runs_view.Filter(repo="team/app-7"), 20, 0), 300),
    "runs by the beginning of their id": Case(
        lambda db: runs_view.listed(db, runs_view.Filter(id_from=RUN, id_to=RUN.replace("7", "f")), 2, 0), 300
    ),
    "steps of a run, for their logs": Case(lambda db: logs.steps_of_run(db, RUN)),
    "a delivery": Case(lambda db: event_log_view.one(db, "old-7")),
    "runs of the last hour": Case(
        lambda db: runs_view.count(db, runs_view.Filter(since=NOW - timedelta(hours=1)), up_to=1_000),
        300,
        answering=True,
    ),
    "a run": Case(lambda db: runs_view.one(db, RUN)),
    "a run's state": Case(lambda db: runs_view.status(db, RUN)),
    "a run's jobs and steps": Case(lambda db: runs_view.jobs(db, RUN, steps=True), answering=True),
}


@pytest.mark.timeout(300)  # the first one makes the database
@pytest.mark.parametrize("case", STATEMENTS.values(), ids=STATEMENTS.keys())
async def test_a_statement_costs_the_same_however_much_has_been(million_rows: Pool[Record], case: Case) -> None:
    async with explained(million_rows, answering=case.answering) as plan:
        await case.run(plan.db)
    assert plan.plans
    assert [table for table in GROWING if plan.scans(table)] == [], plan.plans
    assert plan.buffers < case.pages, plan.plans
