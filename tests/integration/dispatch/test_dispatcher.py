"""What a coordinator claims: fairly, within caps, and nothing that is paused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from kici.engine.lockfile import Level
from kici.orchestrator.agents.contract import Settings
from kici.orchestrator.dispatch.explain import explain
from kici.orchestrator.identity.access import Access
from kici.orchestrator.store import notify, queue_rules
from kici.wire.agent import Dispatch
from tests.support import coordinator
from tests.support.coordinator import Coordinator
from tests.support.fake_agent import FakeAgent, agents, beating
from tests.support.locks import job
from tests.support.runs import Made, make_run
from tests.support.services import until


@pytest.fixture
async def here(database_url: str) -> AsyncIterator[Coordinator]:
    async with coordinator.running(database_url) as one:
        yield one


async def finish(agent: FakeAgent, number: int) -> Dispatch:
    dispatch = await agent.expect(Dispatch, number)
    await agent.begin(dispatch)
    await agent.end(dispatch)
    return dispatch


async def claimed(here: Coordinator) -> Counter[str]:
    rows = await here.pool.fetch("select repository from dispatch_queue where session_id is not null")
    return Counter(row["repository"] for row in rows)


def repository_of(made: dict[str, Made], dispatch: Dispatch) -> str:
    return next(name for name, run in made.items() if dispatch.job_id in run.ids.values())


async def test_repositories_take_turns_however_much_one_of_them_has(here: Coordinator) -> None:
    made = {
        "big": await make_run(here.pool, [job(f"j{number}") for number in range(12)], repo="big"),
        "small": await make_run(here.pool, [job(f"j{number}") for number in range(4)], repo="small"),
    }
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        order = [repository_of(made, await finish(agent, number)) for number in range(1, 9)]
        assert Counter(order) == {"big": 4, "small": 4}
        assert all(one != other for one, other in pairwise(order))


@pytest.mark.parametrize("permissions", [None, {}, {"caches": Level.READ}])
async def test_the_token_of_a_job_stands_for_what_its_workflow_permits(
    here: Coordinator, permissions: dict[str, Level] | None
) -> None:
    await make_run(here.pool, [job("one")], permissions=permissions)
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        dispatch = await agent.expect(Dispatch)
        found = await Access(here.pool).job(dispatch.job_token)
        assert (found.job_id, found.workflow, found.permissions) == (dispatch.job_id, "ci", permissions)


async def test_a_pause_lets_nothing_new_start_and_what_runs_go_on(here: Coordinator) -> None:
    await make_run(here.pool, [job("one"), job("two")], repo="a")
    await make_run(here.pool, [job("three")], repo="b")
    agent = await here.agent(slots=1)
    async with agents(agent):
        await agent.connect()
        first = await agent.expect(Dispatch)
        await agent.begin(first)
        async with here.pool.acquire() as db:
            await queue_rules.pause(db, "all", "", reason="", by="me")
        here.notifier.send(notify.QUEUE)
        assert await agent.end(first) == ""
        await here.dispatcher.run_once()
        assert await claimed(here) == {}
        async with here.pool.acquire() as db:
            await queue_rules.resume(db, "all", "")
        here.notifier.send(notify.QUEUE)
        await agent.expect(Dispatch, 2)


async def test_a_cap_leaves_slots_to_others_and_is_filled_again_when_a_job_ends(here: Coordinator) -> None:
    async with here.pool.acquire() as db:
        await queue_rules.set_cap(db, "a", 2, by="me")
    await make_run(here.pool, [job(f"j{number}") for number in range(5)], repo="a")
    await make_run(here.pool, [job(f"j{number}") for number in range(5)], repo="b")
    agent = await here.agent(slots=6)
    async with agents(agent):
        await agent.connect()
        await agent.expect(Dispatch, 6)
        assert await claimed(here) == {"a": 2, "b": 4}
        for dispatch in agent.all(Dispatch):
            await agent.begin(dispatch)
            await agent.end(dispatch)
        await agent.expect(Dispatch, 9)
        await asyncio.sleep(0)
        assert (await claimed(here))["a"] == 2


async def test_two_coordinators_keep_a_cap_together(database_url: str) -> None:
    async with coordinator.running(database_url) as one, coordinator.running(database_url) as two:
        async with one.pool.acquire() as db:
            await queue_rules.set_cap(db, "a", 3, by="me")
        first, second = await one.agent("x", slots=20), await two.agent("y", slots=20)
        async with agents(first, second):
            await first.connect()
            await second.connect()
            await make_run(one.pool, [job(f"j{number}") for number in range(30)], repo="a")
            one.notifier.send(notify.QUEUE)
            done = 0
            while done < 30:
                for agent in (first, second):
                    for dispatch in agent.all(Dispatch)[getattr(agent, "ended", 0) :]:
                        assert (await claimed(one))["a"] <= 3
                        await agent.begin(dispatch)
                        await agent.end(dispatch)
                        agent.ended = getattr(agent, "ended", 0) + 1  # type: ignore[attr-defined]
                        done += 1
                await asyncio.sleep(0.01)


async def test_a_row_that_another_coordinator_put_back_is_found(database_url: str) -> None:
    """Its place lies before the bound that ours has reached, and the other one tells of it."""
    async with coordinator.running(database_url, dispatching=False) as other, coordinator.running(database_url) as one:
        left, agent = await other.agent("left"), await one.agent("stays", slots=4)
        async with agents(left, agent):
            await left.connect()
            old = await make_run(one.pool, [job("old")])
            await other.dispatcher.run_once()
            await left.begin(await left.expect(Dispatch))
            await agent.connect()
            await make_run(one.pool, [job("new-1"), job("new-2")])
            one.notifier.send(notify.QUEUE, notify.NEW_ROWS)
            await agent.expect(Dispatch, 2)
            await left.drop()
            left.url = one.url
            left.slots, left.draining = 1, True
            await left.connect()
            assert (await agent.expect(Dispatch, 3)).job_id == old["old"]


async def test_an_agent_that_alone_has_a_label_is_kept_for_who_wants_it(here: Coordinator) -> None:
    plain, special = await here.agent("plain"), await here.agent("special", labels=("gpu",))
    async with agents(plain, special):
        await plain.connect()
        await special.connect()
        made = await make_run(here.pool, [job("any-1"), job("train", runs_on=("linux", "gpu"))], repo="a")
        here.notifier.send(notify.QUEUE)
        assert (await special.expect(Dispatch)).job_id == made["train"]
        assert (await plain.expect(Dispatch)).job_id == made["any-1"]


async def test_agents_of_new_labels_find_what_waited_before_they_came(here: Coordinator) -> None:
    plain = await here.agent("plain", slots=2)
    async with agents(plain):
        await plain.connect()
        made = await make_run(here.pool, [job("train", runs_on=("gpu",))])
        here.notifier.send(notify.QUEUE, notify.NEW_ROWS)
        await here.dispatcher.run_once()
        special = await here.agent("special", labels=("gpu",))
        async with agents(special):
            await special.connect()
            assert (await special.expect(Dispatch)).job_id == made["train"]


async def test_a_killed_agent_shows_as_recovering_with_the_reason(database_url: str) -> None:
    quick = Settings(heartbeat_s=0.1, silent_s=0.4)
    async with coordinator.running(database_url, settings=quick) as one:
        agent = await one.agent("box")
        async with agents(agent):
            await agent.connect()
            made = await make_run(one.pool, [job("build")])
            one.notifier.send(notify.QUEUE)
            async with beating(agent):
                dispatch = await agent.expect(Dispatch)
                await agent.begin(dispatch)
                await agent.step(dispatch, "running")
            await agent.drop()

            async def told() -> bool:
                async with one.pool.acquire() as db:
                    reasons = await explain(db, [made["build"]])
                return reasons.get(made["build"], "").startswith("recovering: agent box is silent since")

            await until(told, seconds=15)
