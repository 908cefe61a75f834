"""Every event has its runs exactly once, whoever dies in between."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.lifecycle.new_run import settle_new_runs
from kici.orchestrator.pipeline import process as process_module
from kici.orchestrator.pipeline.commit import Writer
from kici.orchestrator.pipeline.process import process
from kici.orchestrator.pipeline.service import Done, Settings
from kici.orchestrator.store import event_claims
from kici.orchestrator.store.database import create_pool
from kici.orchestrator.store.event_claims import ClaimLost
from tests.integration.pipeline.conftest import LOCK, Rig
from tests.support.locks import lock, workflow

LEASE = timedelta(seconds=15)
HOUR = timedelta(hours=1)


async def pushed(rig: Rig, *workflows: str) -> str:
    sha = rig.local.commit({LOCK: lock(*(workflow(name) for name in workflows or ("ci",)))})
    rig.local.push()
    return await rig.push(sha)


async def claim_lapses(pool: Pool[Record]) -> None:
    await pool.execute("update event_log set next_attempt_at = now(), claim_deadline = now()")


async def test_an_event_that_is_worked_on_is_not_given_to_another(rig: Rig) -> None:
    event_id = await pushed(rig)
    async with rig.pool.acquire() as db:
        (claim,) = await event_claims.claim(db, "coordinator-a", LEASE, 10)
        assert (claim.event_id, claim.attempt) == (event_id, 1)
        assert await event_claims.claim(db, "coordinator-b", LEASE, 10) == []


async def test_an_event_that_is_being_claimed_is_passed_over(rig: Rig) -> None:
    ids = [await pushed(rig), await pushed(rig)]
    async with asyncio.timeout(10), rig.pool.acquire() as db, db.transaction():
        (first,) = await event_claims.claim(db, "coordinator-a", LEASE, 1)
        async with rig.pool.acquire() as other:
            (second,) = await event_claims.claim(other, "coordinator-b", LEASE, 10)
    assert {first.event_id, second.event_id} == set(ids)


async def test_claims_at_the_same_moment_share_the_events(rig: Rig) -> None:
    ids = {await pushed(rig) for _ in range(6)}

    async def claim(holder: str) -> list[str]:
        async with rig.pool.acquire() as db:
            return [one.event_id for one in await event_claims.claim(db, holder, LEASE, 2)]

    claimed = [event for part in await asyncio.gather(*map(claim, "abcd")) for event in part]
    assert len(claimed) == len(set(claimed))
    assert set(claimed) <= ids


async def test_an_event_whose_worker_died_is_picked_up_again_and_has_one_run(rig: Rig, database_url: str) -> None:
    event_id = await pushed(rig, "a", "b")
    dying = await create_pool(database_url, 1)
    async with dying.acquire() as db:
        await event_claims.claim(db, "coordinator-dead", LEASE, 10)
    dying.terminate()
    assert await rig.pipeline.run_once() == []
    await claim_lapses(rig.pool)
    assert (await rig.done()).event_id == event_id
    assert [run["workflow_name"] for run in await rig.runs()] == ["a", "b"]
    assert (await rig.event(event_id))["attempts"] == 2


async def test_a_worker_that_lost_its_event_writes_nothing(rig: Rig) -> None:
    event_id = await pushed(rig)
    async with rig.pool.acquire() as db:
        (slow,) = await event_claims.claim(db, "coordinator-slow", LEASE, 10)
    result = await process(rig.pipeline._parts, slow)
    await claim_lapses(rig.pool)
    await rig.done()
    with pytest.raises(ClaimLost):
        await Writer(rig.pool, settle_new_runs).write(slow, result)
    assert len(await rig.runs()) == 1
    assert (await rig.event(event_id))["status"] == "processed"
    async with rig.pool.acquire() as db:
        assert not await event_claims.renew(db, slow, LEASE)
        assert not await event_claims.try_later(db, slow, HOUR, "late")


async def test_an_event_that_is_processed_a_second_time_makes_no_second_run(rig: Rig) -> None:
    event_id = await pushed(rig, "a", "b")
    await rig.done()
    before = await rig.pool.fetch("select run_id from execution_runs order by run_id")
    await rig.pool.execute("update event_log set status = 'received', next_attempt_at = now()")
    assert (await rig.done()).run_ids == ()
    assert await rig.pool.fetch("select run_id from execution_runs order by run_id") == before
    assert len(await rig.jobs()) == 2
    event = await rig.event(event_id)
    assert (event["status"], event["matched_count"]) == ("processed", 2)


async def test_nothing_is_left_of_a_run_whose_transaction_failed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    event_id = await pushed(rig, "a", "b")

    async def fails(*_: object) -> None:
        raise RuntimeError("power cut")

    with monkeypatch.context() as broken:
        broken.setattr(event_claims, "end", fails)
        assert (await rig.done()).status == "later"
    for table in ("execution_runs", "execution_jobs", "execution_steps", "dispatch_queue", "workflow_registrations"):
        assert await rig.pool.fetch(f"select from {table}") == []
    assert rig.notified == []
    assert "power cut" in (await rig.event(event_id))["error_message"]
    await rig.pool.execute("update event_log set next_attempt_at = now()")
    assert (await rig.done()).status == "processed"


async def test_work_that_takes_longer_than_the_lease_keeps_its_event(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    event_id = await pushed(rig)
    started, go_on = asyncio.Event(), asyncio.Event()
    at = rig.pipeline._parts.lock_files.at

    async def slowly(remote, sha):  # type: ignore[no-untyped-def]
        started.set()
        await go_on.wait()
        return await at(remote, sha)

    rig.pipeline = rig.another(settings=Settings(lease=timedelta(milliseconds=300)))
    monkeypatch.setattr(rig.pipeline._parts.lock_files, "at", slowly)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        working = group.create_task(rig.done())
        await started.wait()
        first = (await rig.event(event_id))["claim_deadline"]
        while (await rig.event(event_id))["claim_deadline"] < first + timedelta(milliseconds=600):
            await asyncio.sleep(0.02)
            assert await rig.another("coordinator-b").run_once() == []
        go_on.set()
    assert working.result().status == "processed"


async def test_a_worker_whose_event_was_taken_over_stops_working_on_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pushed(rig)
    started = asyncio.Event()

    async def never(remote, sha):  # type: ignore[no-untyped-def]
        started.set()
        await asyncio.Event().wait()

    rig.pipeline = rig.another(settings=Settings(lease=timedelta(milliseconds=300)))
    monkeypatch.setattr(rig.pipeline._parts.lock_files, "at", never)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        working = group.create_task(rig.done())
        await started.wait()
        await rig.pool.execute("update event_log set attempts = attempts + 1")
    assert working.result().status == "lost"


async def test_one_event_that_breaks_something_does_not_stop_the_others(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = await pushed(rig), await pushed(rig)

    async def breaks(parts, claim):  # type: ignore[no-untyped-def]
        if claim.event_id == bad:
            raise RuntimeError("a bug \0")
        return await process_module.process(parts, claim)

    monkeypatch.setattr("kici.orchestrator.pipeline.service.process", breaks)
    done = {one.event_id: one.status for one in await rig.pipeline.run_once()}
    assert done == {bad: "later", good: "processed"}
    assert "a bug" in (await rig.event(bad))["error_message"]


async def test_the_service_works_off_what_comes_and_a_wake_up_is_enough(rig: Rig) -> None:
    done: asyncio.Queue[Done] = asyncio.Queue()
    pipeline = rig.another(settings=Settings(workers=2, poll=HOUR), on_done=done.put_nowait)
    first = {await pushed(rig) for _ in range(5)}
    running = asyncio.create_task(pipeline.run())
    try:
        async with asyncio.timeout(20):
            assert {(await done.get()).event_id for _ in range(5)} == first
            later = await pushed(rig)
            pipeline.wake({""})
            assert await done.get() == Done(later, "processed", tuple(run["run_id"] for run in await of(rig, later)))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def of(rig: Rig, event_id: str) -> list[Record]:
    return await rig.pool.fetch("select run_id from execution_runs where event_id = $1", event_id)


async def test_a_service_that_stops_gives_back_what_it_has_not_finished(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    event_id = await pushed(rig)
    started = asyncio.Event()

    async def never(remote, sha):  # type: ignore[no-untyped-def]
        started.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(rig.pipeline._parts.lock_files, "at", never)
    running = asyncio.create_task(rig.pipeline.run())
    async with asyncio.timeout(20):
        await started.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    event = await rig.event(event_id)
    assert (event["status"], event["claimed_by"], event["attempts"]) == ("received", None, 0)
    assert (await rig.another("coordinator-b").run_once())[0].status == "processed"


async def test_an_event_without_its_body_fails_with_that_sentence(rig: Rig) -> None:
    event_id = await pushed(rig)
    await rig.pool.execute("delete from event_payloads")
    assert (await rig.done()).status == "failed"
    assert "body" in (await rig.event(event_id))["error_message"]
