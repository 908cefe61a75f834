"""Nothing waits without a reason."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from kici.engine.lockfile import LockSandbox, Retry
from kici.orchestrator.agents.contract import Settings
from kici.orchestrator.dispatch.explain import explain
from kici.orchestrator.lifecycle.cancel import cancel_run
from kici.orchestrator.store import queue_rules
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
        assert await reasons(made) == {
            "train": "no connected agent has the label gpu-larg (did you mean gpu-large?); nothing here could ever"
            " offer the label gpu-larg: no agent of the last 7 days, no agent token and no scaler names it"
            " (did you mean gpu-large?)"
        }


async def test_a_sandbox_that_no_agent_has_is_a_label_that_is_told_and_one_that_has_it_gets_the_job(
    here: Coordinator,
) -> None:
    agent = await here.agent(labels=("kici:sandbox:none",))
    other = await here.agent("kept", labels=("kici:sandbox:isolated",))
    async with agents(agent, other):
        await agent.connect()
        made = await make_run(here.pool, [job("build", sandbox=LockSandbox.ISOLATED)])
        assert (await reasons(made))["build"].startswith("no connected agent has the label kici:sandbox:isolated")
        await other.connect()
        assert (await other.expect(Dispatch)).name == "build"


async def test_busy_agents_are_counted_and_a_sent_job_names_its_agent(here: Coordinator) -> None:
    agent = await here.agent("box")
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("one"), job("two", priority=-5)])
        here.notifier.send("kici_queue")
        sent = await agent.expect(Dispatch)
        told = await reasons(made)
        assert re.fullmatch(
            r"sent to agent box, which has not accepted it since 20\S+ \S+ UTC; it is taken back at 20\S+ \S+ UTC",
            told["one"],
        )
        assert told["two"] == "every agent with kici:os:linux is busy (1/1 slots in use)"
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
        told = (await reasons(made))["one"]
        assert told.startswith("recovering: agent box is silent since 20")
        assert "it may report the end, after that the job is given up as lost" in told
        async with here.pool.acquire() as db, db.transaction():
            await cancel_run(db, made.run_id, by="me", reason="no", force=False)
        told = (await reasons(made))["one"]
        assert told.startswith("cancelling since 20")
        assert "agent box has not reported the end yet; at 20" in told


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
        assert re.fullmatch(r"attempt 2 starts in \d+ s: agent box came back without it", (await reasons(made))["one"])


async def test_a_rejected_job_waits_for_the_agents(here: Coordinator) -> None:
    agent = await here.agent("box")
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("one")])
        here.notifier.send("kici_queue")
        sent = await agent.expect(Dispatch)
        await agent.tell(JobRejected(sent.job_id, sent.attempt, "disk"))
        # The pause after a first rejection may be over before it is asked about.
        await here.pool.execute("update dispatch_queue set not_before = now() + interval '5 seconds'")
        assert re.fullmatch(
            r"attempt 2 starts in \d s: agent box did not take it \(disk\)", (await reasons(made))["one"]
        )


async def test_what_an_operator_has_set_is_told_with_who_and_why(here: Coordinator) -> None:
    agent = await here.agent("box", slots=2)
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("one"), job("two"), job("three")], repo="team/app")
        async with here.pool.acquire() as db:
            await queue_rules.set_cap(db, "team/app", 1, by="admin_token:ops")
        here.notifier.send("kici_queue")
        first = await agent.expect(Dispatch)
        await agent.begin(first)
        async with here.pool.acquire() as db:
            await queue_rules.pause(db, "all", "", reason="new rack", by="admin_token:ops")
            await queue_rules.pause(db, "label", "kici:os:linux", reason="", by="admin_token:ops")
        told = await reasons(made)
        assert set(told) == {"two", "three"}
        for place, name in enumerate(("two", "three"), 1):
            assert re.fullmatch(
                r"the queue is paused by admin_token:ops since 20\S+ \S+ UTC: new rack;"
                r" jobs that want kici:os:linux are paused by admin_token:ops since 20\S+ \S+ UTC;"
                r" repository team/app is at its cap \(1 of 1 running\);"
                rf" {place}(st|nd) of 2 in its lane; the oldest has waited \d+ s",
                told[name],
            ), told[name]


async def test_a_group_tells_who_holds_it_and_the_place_in_line(here: Coordinator) -> None:
    made = [await make_run(here.pool, [job("deploy")]) for _ in range(3)]
    for number, one in enumerate(made):
        await here.pool.execute(
            """
            insert into concurrency_groups (group_key, routing_key, run_id, status, activated_at)
            values ('prod', 'k::local/demo', $1, $2, now())
            """,
            one.run_id,
            "queued" if number else "active",
        )
        if number:
            await here.pool.execute("delete from dispatch_queue where run_id = $1", one.run_id)
            await here.pool.execute("update execution_jobs set status = 'pending' where run_id = $1", one.run_id)
    told = (await reasons(made[2]))["deploy"]
    assert re.fullmatch(
        rf"its run is waiting for the concurrency group prod, held by run {made[0].run_id} since 20\S+ \S+ UTC;"
        r" 2nd of 2 in line",
        told,
    ), told


async def test_a_window_tells_how_many_run(here: Coordinator) -> None:
    made = await make_run(here.pool, [job("a"), job("b")])
    await here.pool.execute(
        """
        update execution_jobs set base_job_name = 'test', wave_max_parallel = 1, wave_gated = job_name = 'b',
               status = case when job_name = 'b' then 'pending' else 'queued' end
        """
    )
    await here.pool.execute("delete from dispatch_queue where id = $1", made["b"])
    assert (await reasons(made))["b"] == (
        "waiting for a place in the fan-out of test: 1 of 1 run at once (max_parallel)"
    )
