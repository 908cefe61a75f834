"""The statements of the pipeline cost the same however much has happened before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from asyncpg import Pool, Record

from kici.engine.events import Event, EventType
from kici.engine.lifecycle import RunStatus
from kici.orchestrator.store import attempts, caused, event_claims, last_runs, registrations, run_states, runs
from kici.orchestrator.store.caused import Cause
from kici.orchestrator.store.registrations import Repository, RepositoryContext
from kici.orchestrator.store.runs import NewRun
from tests.support.explain import explained
from tests.support.locks import workflow


@pytest.fixture
async def old(pool: Pool[Record]) -> Pool[Record]:
    """A database with a past: 20,000 events and as many runs, one a minute."""
    await pool.execute(
        """
        insert into event_log (org_id, delivery_id, routing_key, event, source, provider, payload_size_bytes,
                               payload_hash, status, received_at, processed_at, repo_identifier, ref)
        select 'default', 'old-' || n, 'k', 'push', 'direct', 'github', 0, '', 'processed',
               now() - n * interval '1 minute', now(), 'team/app', 'refs/heads/main'
          from generate_series(1, 20000) n
        """
    )
    await pool.execute(
        """
        insert into execution_runs (run_id, event_id, workflow_name, provider, repo_identifier, ref, sha, workflow_sha,
                                    routing_key, trigger_event, created_at)
        select gen_random_uuid(), gen_random_uuid(), 'ci', 'github', 'team/app', 'refs/heads/main', n::text, n::text,
               'k', 'push', now() - n * interval '1 minute'
          from generate_series(1, 20000) n
        """
    )
    await pool.execute(
        """
        insert into workflow_registrations (repo_identifier, workflow_name, lock_entry, trigger_types, routing_key,
                                            customer_id)
        select 'team/' || n, 'ci', '{}', '{push}', 'k', 'default' from generate_series(1, 20000) n
        """
    )
    await pool.execute("vacuum analyze event_log, execution_runs, workflow_registrations")
    return pool


async def test_claiming_does_not_look_at_events_that_have_ended(old: Pool[Record]) -> None:
    async with explained(old) as plan:
        await event_claims.claim(plan.db, "a", timedelta(seconds=15), 8)
    assert not plan.scans("event_log")
    assert plan.buffers < 20


async def test_a_twin_is_looked_for_among_the_newest_runs_of_its_repository(old: Pool[Record]) -> None:
    run = NewRun(
        run_id="0" * 32,
        event_id=None,
        workflow_name="ci",
        provider="github",
        routing_key="other",
        repo="team/app",
        ref="refs/heads/main",
        sha="5",
        workflow_sha="5",
        clone_url="",
        event=Event(EventType.PUSH),
        delivery_id="",
        trigger_event="push",
    )
    async with explained(old) as plan:
        await runs.find_twin(plan.db, run, timedelta(minutes=10))
    assert not plan.scans("execution_runs")
    assert plan.buffers < 40


async def test_registering_looks_only_at_what_came_later_and_at_its_own_repository(old: Pool[Record]) -> None:
    repository = Repository("k", "team/7", RepositoryContext("github", "https://forge/team/7", "main", ""))
    async with explained(old) as plan:
        await registrations.replace(
            plan.db, repository, "1" * 40, [workflow()], datetime.now(UTC) - timedelta(minutes=10)
        )
    assert not plan.scans("event_log")
    assert not plan.scans("workflow_registrations")
    assert plan.buffers < 200


async def test_a_generic_webhook_reads_only_registrations_that_wait_for_one(old: Pool[Record]) -> None:
    async with explained(old) as plan:
        await registrations.with_trigger(plan.db, "generic_webhook")
    assert not plan.scans("workflow_registrations")
    assert plan.buffers < 40


async def test_what_a_workflow_has_caused_is_counted_among_its_own_events_of_that_minute(old: Pool[Record]) -> None:
    await old.execute(
        """
        update event_log set provider = 'kici_event', headers = '{"workflow": "ci"}', matched_count = 1
         where substr(delivery_id, 5)::int % 2 = 0
        """
    )
    await old.execute("vacuum analyze event_log")
    received = await old.fetchval("select received_at from event_log where provider = 'kici_event' limit 1")
    cause = Cause("k", "team/app", "ci")
    async with explained(old) as plan:
        await caused.in_minute_of(plan.db, cause, received)
    assert not plan.scans("event_log")
    assert plan.buffers < 10
    async with old.acquire() as db:
        assert await caused.in_minute_of(db, cause, received) == 1


async def test_whether_anybody_waits_for_an_end_is_known_without_reading_registrations(old: Pool[Record]) -> None:
    run_id = await old.fetchval("select run_id from execution_runs limit 1")
    async with explained(old) as plan:
        await run_states.end(plan.db, [run_states.Ending(run_id, RunStatus.SUCCESS)])
    assert not plan.scans("workflow_registrations")
    assert plan.buffers < 100
    async with explained(old) as plan:
        await attempts.end(plan.db, [], [])
    assert not plan.scans("workflow_registrations")
    assert plan.buffers < 20


async def test_the_last_runs_of_a_branch_cost_the_same_in_a_repository_with_a_past(old: Pool[Record]) -> None:
    await old.execute("update execution_runs set clone_url = 'https://forge/app'")
    await old.execute("vacuum analyze execution_runs")
    args = ("team/app", "https://forge/app", "refs/heads/main", ["ci", "docs", "other"])
    async with explained(old) as plan:
        await last_runs.of_branch(plan.db, *args)
    assert not plan.scans("execution_runs")
    assert plan.buffers < 600  # twice of what it takes: a vacuum may have to leave old versions


async def test_the_newest_success_of_a_branch_is_found_and_one_of_long_ago_is_not(old: Pool[Record]) -> None:
    await old.execute("update execution_runs set clone_url = 'https://forge/app'")
    async with old.acquire() as db:
        args = ("team/app", "https://forge/app", "refs/heads/main", ["ci", "docs"])
        assert await last_runs.of_branch(db, *args) == {"ci": last_runs.LastRuns("", any=True)}
        await db.execute("update execution_runs set status = 'success' where sha = '201'")
        assert (await last_runs.of_branch(db, *args))["ci"].success == ""
        await db.execute("update execution_runs set status = 'success' where sha in ('7', '9')")
        assert (await last_runs.of_branch(db, *args))["ci"].success == "7"
