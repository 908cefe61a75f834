"""A token that was revoked closes the sockets that it opened, and settles what their agents had."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from asyncpg import Pool, Record

from kici.engine.lockfile import Retry
from kici.orchestrator.store import notify, tokens
from kici.wire.agent import Dispatch
from tests.support import coordinator
from tests.support.coordinator import Coordinator
from tests.support.fake_agent import FakeAgent, TurnedAway, agents
from tests.support.locks import job
from tests.support.runs import make_run
from tests.support.services import until

HOUR = timedelta(hours=1)


@pytest.fixture
async def here(database_url: str) -> AsyncIterator[Coordinator]:
    """It polls nothing."""
    async with coordinator.running(database_url, interval=HOUR) as one:
        yield one


async def token_of(pool: Pool[Record], agent: FakeAgent) -> str:
    found: str = await pool.fetchval("select token_id from agent_sessions where agent_id = $1", agent.agent_id)
    return found


async def revoke(pool: Pool[Record], token_id: str) -> None:
    async with pool.acquire() as db:
        assert await tokens.revoke_agent(db, token_id)


async def test_it_closes_the_socket_within_a_second_on_another_coordinator_too(
    database_url: str, here: Coordinator
) -> None:
    async with coordinator.running(database_url, interval=HOUR) as other:
        agent, bystander = await other.agent(), await other.agent("bystander")
        async with agents(agent, bystander):
            await agent.connect()
            await bystander.connect()
            await revoke(here.pool, await token_of(here.pool, agent))
            here.notifier.send(notify.TOKENS, "any")
            async with asyncio.timeout(1):
                assert await agent.close_code() == 4010
            await bystander.heartbeat()
            with pytest.raises(TurnedAway, match="4010"):
                await agent.connect()


async def test_a_token_that_expires_is_noticed_by_polling(database_url: str) -> None:
    async with coordinator.running(database_url, interval=timedelta(seconds=0.1), hearing=False) as here:
        agent = await here.agent()
        async with agents(agent):
            await agent.connect()
            await here.pool.execute("update agent_tokens set expires_at = now()")
            assert await agent.close_code() == 4010


async def test_its_jobs_are_settled_but_the_next_attempt_waits_until_the_agent_must_have_killed(
    here: Coordinator,
) -> None:
    agent = await here.agent(slots=3)
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("once"), job("again", retry_on_infra=Retry(3)), job("sent")])
        here.notifier.send(notify.QUEUE)
        await agent.expect(Dispatch, 3)
        sent = {dispatch.name: dispatch for dispatch in agent.all(Dispatch)}
        for name in ("once", "again"):
            await agent.begin(sent[name])
            await agent.step(sent[name], "running")
        await revoke(here.pool, await token_of(here.pool, agent))
        here.notifier.send(notify.TOKENS, "any")
        assert await agent.close_code() == 4010

        async def is_settled() -> bool:
            return await made.statuses() == {"once": "infra_lost", "again": "recovering", "sent": "queued"}

        await until(is_settled)
        assert (await made.job("once"))["error_message"] == "the token of agent agent-1 was revoked"
        waits = await here.pool.fetchval(
            "select recovery_deadline - now() from execution_jobs where job_id = $1", made["again"]
        )
        assert waits > timedelta(seconds=here.limits.recovery_s)
        row = await made.queue_row("sent")
        assert row
        assert row["session_id"] is None
