"""No connection is free, a transaction is refused, the server ends a connection: whoever waits is told, the rest goes
on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.errors import Unavailable
from kici.orchestrator.lifecycle.cancel import cancel_run
from kici.orchestrator.store.database import create_pool, transaction
from kici.wire.agent import Dispatch
from tests.support import api_server, coordinator
from tests.support.fake_agent import agents
from tests.support.locks import job
from tests.support.runs import make_run

REFUSALS = {"serialization failure": "40001", "deadlock": "40P01"}


@asynccontextmanager
async def all_taken(pool: Pool[Record], size: int) -> AsyncIterator[None]:
    held = [await pool.acquire() for _ in range(size)]
    try:
        yield
    finally:
        for one in held:
            await pool.release(one)


async def test_while_every_connection_is_busy_requests_are_refused_with_a_sentence_and_then_served(
    database_url: str, folder: Path
) -> None:
    pool = await create_pool(database_url, 4)
    try:
        async with (
            api_server.serve(pool, database_url, folder) as here,
            api_server.client(here.url, api_server.TOKENS["owner"]) as client,
        ):
            made = await make_run(pool, [job("build")])
            paths = ["/api/v1/admin/runs", f"/api/v1/admin/runs/{made.run_id}", "/api/v1/admin/event-log"]
            paths.append(f"{paths[1]}/jobs/{made['build']}/steps/0/logs")
            async with all_taken(pool, 4), asyncio.timeout(10):
                for answer in await asyncio.gather(*(client.get(path) for path in paths * 5)):
                    assert answer.status_code == 503, answer.text
                    assert "try again" in answer.text
                    assert answer.headers["retry-after"]
            assert (await client.get(paths[0])).status_code == 200
    finally:
        pool.terminate()


async def test_while_every_connection_is_busy_agents_are_heard_and_their_words_wait(database_url: str) -> None:
    async with coordinator.running(database_url, pool_size=6) as here:
        agent = await here.agent()
        async with agents(agent):
            await agent.connect()
            made = await make_run(here.pool, [job("build")])
            here.notifier.send("kici_queue")
            build = await agent.expect(Dispatch)
            await agent.begin(build)
            async with all_taken(here.pool, 6):
                ended = asyncio.create_task(agent.end(build))
                for _ in range(5):
                    await agent.heartbeat()
                assert not ended.done()
            assert await ended == ""
            assert (await made.run())["status"] == "success"


@pytest.mark.parametrize("kind", REFUSALS)
async def test_a_transaction_that_is_refused_is_tried_again(database_url: str, kind: str) -> None:
    """The first two writes of a job's row are refused, of its acceptance and of its end."""
    async with coordinator.running(database_url) as here:
        made = await make_run(here.pool, [job("build")])
        await here.pool.execute(
            f"""
            create sequence refused;
            create function refuse() returns trigger language plpgsql as $$
            begin
              if nextval('refused') <= 2 then raise exception 'not now' using errcode = '{REFUSALS[kind]}'; end if;
              return new;
            end $$;
            create trigger refuse before update on execution_jobs for each row execute function refuse();
            """
        )
        agent = await here.agent()
        async with agents(agent):
            await agent.connect()
            build = await agent.expect(Dispatch)
            await here.pool.execute("alter sequence refused restart")
            assert await agent.begin(build) == ""
            await here.pool.execute("alter sequence refused restart")
            assert await agent.end(build) == ""
            assert (await made.run())["status"] == "success"
            assert await here.pool.fetchval("select last_value from refused") > 2


@pytest.mark.parametrize("kind", REFUSALS)
async def test_a_claim_that_is_refused_is_made_again(database_url: str, kind: str) -> None:
    async with coordinator.running(database_url) as here:
        await make_run(here.pool, [job("build")])
        await here.pool.execute(
            f"""
            create sequence refused;
            create function refuse() returns trigger language plpgsql as $$
            begin
              if nextval('refused') <= 2 then raise exception 'not now' using errcode = '{REFUSALS[kind]}'; end if;
              return new;
            end $$;
            create trigger refuse before update on dispatch_queue for each row execute function refuse();
            """
        )
        agent = await here.agent()
        async with agents(agent):
            await agent.connect()
            assert (await agent.expect(Dispatch)).attempt == 1


async def test_a_connection_that_the_server_ends_in_the_midst_of_a_transaction_leaves_nothing_of_it(
    pool: Pool[Record],
) -> None:
    made = await make_run(pool, [job("build"), job("test")])
    with pytest.raises(Unavailable):
        async with transaction(pool) as db:
            await cancel_run(db, made.run_id, by="me", reason="enough", force=False)
            await pool.fetchval("select pg_terminate_backend($1)", await db.fetchval("select pg_backend_pid()"))
            await db.fetchval("select 1")
    assert await made.statuses() == {"build": "queued", "test": "queued"}
    async with transaction(pool) as db:
        await cancel_run(db, made.run_id, by="me", reason="enough", force=False)
    assert await made.statuses() == {"build": "cancelled", "test": "cancelled"}


async def test_who_stops_in_the_midst_of_a_transaction_loses_its_locks(database_url: str, pool: Pool[Record]) -> None:
    """As a coordinator that was stopped with SIGSTOP: others need not wait for it to wake up."""
    made = await make_run(pool, [job("build")])
    sleeper = await create_pool(database_url, 1, idle_s=0.2)
    try:
        with pytest.raises(Unavailable):
            async with transaction(sleeper) as db:
                await db.execute("update execution_jobs set status = 'failed'")
                async with asyncio.timeout(10):
                    await pool.execute("update execution_jobs set status = 'queued'")  # waits for the lock
                await db.execute("update execution_jobs set status = 'failed'")
        assert await made.statuses() == {"build": "queued"}
    finally:
        sleeper.terminate()


async def test_a_statement_that_takes_too_long_ends_and_so_does_the_wait_for_its_rollback(
    pool: Pool[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kici.orchestrator.store.database.ANSWER_S", 0.2)
    async with asyncio.timeout(5):
        with pytest.raises(Unavailable):
            async with transaction(pool) as db:
                await db.fetchval("select pg_sleep(60)")
    async with transaction(pool) as db:
        assert await db.fetchval("select 1") == 1
