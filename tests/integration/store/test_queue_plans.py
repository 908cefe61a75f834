"""What the statements of the queue cost beside a million jobs that no agent can run and a million rows of history."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
from asyncpg import Pool, Record

from kici.engine.labels import Requirement
from kici.orchestrator.dispatch import queue_stats
from kici.orchestrator.dispatch.explain import explain
from kici.orchestrator.store import known_labels, lanes, queue, queue_rules, sessions, waits
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.lanes import Lane, Want
from kici.orchestrator.store.queue import Enqueue, Release
from kici.orchestrator.store.views import queue as queue_view
from kici.orchestrator.store.views import queue_stats as queue_stats_view
from tests.support.explain import Explained, explained
from tests.support.million import SESSION, TABLES

GROWING = (*TABLES, "agent_sessions")
CROWD_RUN = "0000000a-0000-4000-8000-000000000001"
FREE = "00000010-0000-4000-8000-000000000028"
CLAIMED = "00000010-0000-4000-8000-000000000001"
LINUX = Requirement(("kici:os:linux",))
NOW = datetime.now(UTC)


def wants(lane: Lane, count: int = 4) -> list[Want]:
    return [Want(lane, SESSION, uuid.uuid4().hex) for _ in range(count)]


def new_rows(count: int) -> list[Enqueue]:
    return [
        Enqueue(str(uuid.uuid4()), str(uuid.uuid4()), "ci", "job", "team/app-0", LINUX, expires_s=60)
        for _ in range(count)
    ]


Statement = Callable[[Db, Lane], Awaitable[object]]

STATEMENTS: dict[str, tuple[Statement, int]] = {
    # looking and claiming
    "label sets that are not known yet": (lambda db, lane: lanes.open_label_sets(db, ()), 40),
    "label sets beside the known ones": (lambda db, lane: lanes.open_label_sets(db, [lane.label_set_id]), 40),
    "lanes of a label set": (lambda db, lane: lanes.open_lanes(db, [lane.label_set_id]), 40),
    "lanes beside the known ones": (
        lambda db, lane: lanes.open_lanes(db, [lane.label_set_id], {lane: 0.0}),
        40,
    ),
    "a claim": (lambda db, lane: lanes.claim(db, "here", wants(lane), 10), 400),
    "a claim under a cap": (
        lambda db, lane: lanes.claim(db, "here", wants(lane), 10, capped=[lane.repository], default_cap=12),
        400,
    ),
    "a claim of what nobody can run": (
        lambda db, lane: lanes.claim(db, "here", wants(Lane(lane.label_set_id - 1, "crowd-1"), 1), 10),
        400,
    ),
    "the lock of a cap": (lambda db, lane: lanes.lock_caps(db, ["team/app-0"]), 20),
    "when the next is due": (lambda db, lane: lanes.next_due_s(db), 20),
    "pauses": (lambda db, lane: queue_rules.pauses(db), 20),
    "caps": (lambda db, lane: queue_rules.caps(db), 20),
    "how many run of a repository": (lambda db, lane: queue_rules.running(db, ["team/app-0"]), 40),
    # rows
    "putting in": (lambda db, lane: queue.enqueue(db, new_rows(2)), 200),
    "locking": (lambda db, lane: queue.lock(db, [FREE, CLAIMED]), 40),
    "which have a row": (lambda db, lane: queue.existing(db, [FREE]), 20),
    "moving to another session": (lambda db, lane: queue.move(db, [CLAIMED], SESSION, 10), 120),
    "releasing": (lambda db, lane: queue.release(db, [Release(CLAIMED, expires_s=60, why="lost")]), 150),
    "claims of a session": (lambda db, lane: queue.claims_of(db, [SESSION]), 60),
    # sweepers
    "claims without an answer": (lambda db, lane: queue.find_unacknowledged(db, 200), 60),
    "what has waited too long": (lambda db, lane: queue.find_expired(db, 500), 40),
    # what people ask
    "the list": (lambda db, lane: queue_view.listed(db, queue_view.Filter(), 100), 1_500),
    "the list of what agents have": (
        lambda db, lane: queue_view.listed(db, queue_view.Filter(status="dispatched"), 100),
        120,
    ),
    "the list of one run": (lambda db, lane: queue_view.listed(db, queue_view.Filter(run_id=CROWD_RUN), 100), 60),
    "the list of what is new": (
        lambda db, lane: queue_view.listed(
            db, queue_view.Filter(status="pending", created_after=NOW - timedelta(days=1)), 100
        ),
        1_500,
    ),
    "one row": (lambda db, lane: queue_view.one(db, FREE), 40),
    "a job by the beginning of its id": (
        lambda db, lane: queue_view.jobs_between(db, CROWD_RUN, CROWD_RUN.replace("1", "f"), 2),
        40,
    ),
    "where jobs stand": (lambda db, lane: waits.standing(db, [FREE, CLAIMED]), 40),
    "places in a lane of 20,000": (
        lambda db, lane: waits.heads(db, [Lane(lane.label_set_id - 1, "crowd-1")]),
        1_500,
    ),
    "who waits for a group": (lambda db, lane: waits.in_line(db, [CROWD_RUN]), 40),
    "who holds a group": (lambda db, lane: waits.holders(db, [("k", "g")]), 40),
    "how many of a fan-out run": (lambda db, lane: waits.in_flight(db, [CROWD_RUN]), 60),
    "connected agents": (lambda db, lane: sessions.connected(db), 400),
    "known labels": (lambda db, lane: known_labels.read(db), 400),
    "the claimed, by repository": (lambda db, lane: queue_stats_view.read_claimed(db), 60),
}


async def can_run(pool: Pool[Record]) -> Lane:
    row = await pool.fetchrow(
        "select id, 'team/app-0' as repository from label_sets where key = 'linux'",
    )
    assert row
    return Lane(row["id"], row["repository"])


@pytest.mark.timeout(300)  # the first one makes the database
@pytest.mark.parametrize(("statement", "pages"), STATEMENTS.values(), ids=STATEMENTS.keys())
async def test_a_statement_touches_few_pages_and_reads_no_growing_table_whole(
    million_rows: Pool[Record], statement: Statement, pages: int
) -> None:
    lane = await can_run(million_rows)
    async with explained(million_rows, answering=statement is STATEMENTS["putting in"][0]) as plan:
        await statement(plan.db, lane)
    _check(plan, pages)


@pytest.mark.timeout(300)
async def test_the_queue_at_a_glance_costs_a_bounded_number_of_pages(million_rows: Pool[Record]) -> None:
    async with explained(million_rows, answering=True) as plan:
        stats = await queue_stats.read(plan.db)
    assert stats.pending_is_estimate
    assert 900_000 < stats.pending < 1_100_000
    assert stats.running + stats.dispatched == 20
    assert {lane.repository for lane in stats.lanes if lane.has_agent} == {"team/app-0", "team/app-1"}
    assert len(stats.lanes) == 52
    _check(plan, 50 * 1_200)


@pytest.mark.timeout(300)
async def test_explaining_a_job_of_the_crowd_costs_a_bounded_number_of_pages(million_rows: Pool[Record]) -> None:
    job_id = await million_rows.fetchval("select job_id from execution_jobs where run_id = $1 limit 1", CROWD_RUN)
    async with explained(million_rows, answering=True) as plan:
        reasons = await explain(plan.db, [job_id])
    assert "mainframe" in reasons[job_id]
    assert "in its lane" in reasons[job_id]
    _check(plan, 2_500)


def _check(plan: Explained, pages: int) -> None:
    assert plan.plans
    scanned = [table for table in GROWING if plan.scans(table)]
    assert not scanned, (scanned, plan.plans)
    assert plan.buffers <= pages, (plan.buffers, plan.plans)
