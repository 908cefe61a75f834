"""Nothing waits without a reason."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kici.engine.lockfile import Retry
from kici.orchestrator.agents.contract import Settings
from kici.orchestrator.dispatch.explain import explain
from kici.orchestrator.lifecycle.cancel import cancel_run
from kici.wire.agent import Dispatch, JobRejected
from tests.support import coordinator
from tests.support.coordinator import Coordinator
from tests.support.fake_agent import agents
from tests.support.locks import job
from tests.support.runs import Made, make_run


@pytest.fixture
async def here(database_url: str) -> AsyncIterator[Coordinator]:
    async with coordinator.running(database_url, settings=Settings(silent_s=60)) as one:
        yield one


async def reasons(made: Made) -> dict[str, str]:
    names = {job_id: name for name, job_id in made.ids.items()}
    async with made.pool.acquire() as db:
        return {names[job_id]: reason for job_id, reason in (await explain(db, list(names))).items()}


async def test_without_agents_the_labels_are_told_and_what_to_start(here: Coordinator) -> None:
    made = await make_run(here.pool, [job("build"), job("test", needs=["build"])])
    assert await reasons(made) == {
        "build": "no agent is connected (it wants kici:os:linux): start one with `kici-agent`",
        "test": "waiting for job build",
    }


async def test_a_label_that_nobody_has_is_told_with_the_nearest(here: Coordinator) -> None:
    agent = await here.agent(labels=("gpu-large",))
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("train", runs_on=("linux", "gpu-larg"))])
        assert await reasons(made) == {"train": "no connected agent has the label gpu-larg; did you mean gpu-large?"}


async def test_busy_agents_are_counted_and_a_sent_job_names_its_agent(here: Coordinator) -> None:
    agent = await here.agent("box")
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("one"), job("two", priority=-5)])
        here.notifier.send("kici_queue")
        sent = await agent.expect(Dispatch)
        assert await reasons(made) == {
            "one": "sent to agent box, which has not accepted it yet",
            "two": "every agent with kici:os:linux is busy (1/1 slots in use)",
        }
        await agent.begin(sent)
        assert set(await reasons(made)) == {"two"}


async def test_a_silent_agent_is_named_with_the_time(here: Coordinator) -> None:
    agent = await here.agent("box")
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("one")])
        here.notifier.send("kici_queue")
        await agent.begin(await agent.expect(Dispatch))
        here.roster.all()[0].heard_at -= 61
        await here.silence.run_once()
        assert (await reasons(made))["one"].startswith("recovering: agent box is silent since 20")
        async with here.pool.acquire() as db, db.transaction():
            await cancel_run(db, made.run_id, by="me", reason="no", force=False)
        assert (await reasons(made))["one"] == "cancelling: agent box has not reported the end yet"


async def test_a_job_between_two_attempts_says_when_the_next_starts(here: Coordinator) -> None:
    agent = await here.agent("box")
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("one", retry_on_infra=Retry(3, delay_ms=30_000))])
        here.notifier.send("kici_queue")
        sent = await agent.expect(Dispatch)
        assert sent.kill_after_silence_s == 120
        await agent.begin(sent)
        await agent.step(sent, "running")
        await agent.drop()
        await agent.connect()
        assert (await reasons(made))["one"].startswith("attempt 2 starts in ")


async def test_a_rejected_job_waits_for_the_agents(here: Coordinator) -> None:
    agent = await here.agent("box")
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("one")])
        here.notifier.send("kici_queue")
        sent = await agent.expect(Dispatch)
        await agent.tell(JobRejected(sent.job_id, sent.attempt, "disk"))
        assert "one" in await reasons(made)
