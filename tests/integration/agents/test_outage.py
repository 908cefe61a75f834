"""The database goes away under running jobs: an outage is not a loss."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from kici.orchestrator.store import migrate
from kici.orchestrator.store.embedded import EmbeddedPostgres
from kici.wire.agent import Dispatch, JobAccepted, JobStatusChanged
from tests.support import coordinator
from tests.support.coordinator import Coordinator
from tests.support.fake_agent import agents, beating
from tests.support.locks import job
from tests.support.postgres import memory, reachable_folder
from tests.support.runs import make_run
from tests.support.services import until

TTL = timedelta(seconds=2)


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedPostgres]:
    with reachable_folder(memory()) as folder:
        server = EmbeddedPostgres(Path(folder))
        await server.start()
        try:
            await migrate.ensure(server.url)
            yield server
        finally:
            await server.stop()


@pytest.fixture
async def here(server: EmbeddedPostgres) -> AsyncIterator[Coordinator]:
    async with coordinator.running(server.url, leading=True, ttl=TTL) as one:
        yield one


async def test_no_job_is_requeued_or_lost_because_the_database_was_away(
    server: EmbeddedPostgres, here: Coordinator
) -> None:
    agent = await here.agent(slots=3)
    await agent.connect()
    async with agents(agent), beating(agent):
        made = await make_run(here.pool, [job("running"), job("ending"), job("sent"), job("later", needs=["ending"])])
        here.notifier.send("kici_queue")
        await agent.expect(Dispatch, 3)
        sent = {dispatch.name: dispatch for dispatch in agent.all(Dispatch)}
        for name in ("running", "ending"):
            await agent.begin(sent[name])
            await agent.step(sent[name], "running")
        await here.pool.execute("update dispatch_queue set ack_deadline = now() where ack_deadline is not null")
        await server.stop()

        accepted = await agent.send(JobAccepted(sent["sent"].job_id, 1))
        ended = await agent.send(JobStatusChanged(sent["ending"].job_id, 1, "success", int(time.time() * 1000)))

        async def has_lapsed() -> bool:
            return not here.lease.valid()

        await until(has_lapsed)
        await server.start()
        assert await agent.answer_to(accepted) == ""
        assert await agent.answer_to(ended) == ""
        await agent.heartbeat()
        await agent.expect(Dispatch, 4)

        async def sweepers_work_again() -> bool:
            return bool(
                await here.pool.fetchval(
                    "select bool_or(lease_since < now() - interval '3 seconds' and lease_expires_at > now())"
                    "  from coordinators"
                )
            )

        await until(sweepers_work_again)
        assert await made.statuses() == {
            "running": "running",
            "ending": "success",
            "sent": "running",
            "later": "queued",
        }
        assert await here.pool.fetchval("select max(attempt) from dispatch_queue") == 1
        assert await agent.end(sent["running"]) == ""
        assert await agent.end(sent["sent"]) == ""
