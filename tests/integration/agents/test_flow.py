"""From the queue to an agent and back, over real sockets."""

from __future__ import annotations

import httpx
import msgspec
import pytest

from kici.orchestrator.dispatch.explain import explain
from kici.orchestrator.errors import Forbidden, Unavailable
from kici.orchestrator.lifecycle.cancel import cancel_run
from kici.orchestrator.store import notify
from kici.orchestrator.store.views.agents import listed
from kici.wire.agent import AttemptRef, Cancel, Dispatch, Goodbye, JobRejected
from kici.wire.context import JobContext
from tests.support import coordinator
from tests.support.coordinator import Coordinator
from tests.support.fake_agent import agents
from tests.support.locks import job
from tests.support.runs import make_run
from tests.support.services import until


async def test_a_job_goes_to_an_idle_agent_and_its_end_releases_what_needs_it(here: Coordinator) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("build", env={"A": "1"}), job("test", needs=["build"])])
        here.notifier.send("kici_queue")
        build = await agent.expect(Dispatch)
        assert (build.job_id, build.attempt, build.name) == (made["build"], 1, "build")
        assert build.kill_after_silence_s is None
        assert build.context is not None
        assert (build.context.env, build.context.event.branch) == ({"A": "1"}, "main")
        assert await agent.begin(build) == ""
        assert (await made.run())["status"] == "running"
        assert await agent.step(build, "running") == ""
        assert await agent.step(build, "success", exit_code=0) == ""
        assert await agent.end(build, outputs={"run": {"version": "7"}}) == ""

        test = await agent.expect(Dispatch, 2)
        assert test.job_id == made["test"]
        assert test.context is not None
        assert [(need.name, need.status, need.outputs) for need in test.context.needs] == [
            ("build", "success", {"run": {"version": "7"}})
        ]
        assert test.job_token != build.job_token
        await agent.begin(test)
        await agent.end(test)
        assert (await made.run())["status"] == "success"
    assert await here.pool.fetchval("select count(*) from dispatch_queue") == 0


async def test_two_coordinators_share_the_queue_without_giving_a_job_twice(database_url: str) -> None:
    async with coordinator.running(database_url) as one, coordinator.running(database_url) as two:
        first, second = await one.agent("a", slots=20), await two.agent("b", slots=20)
        async with agents(first, second):
            await first.connect()
            await second.connect()
            for _ in range(5):
                await make_run(one.pool, [job(f"job-{number}") for number in range(6)])
                one.notifier.send("kici_queue")

            async def all_sent() -> bool:
                return len(first.all(Dispatch)) + len(second.all(Dispatch)) >= 30

            await until(all_sent)
            sent = [dispatch.job_id for agent in (first, second) for dispatch in agent.all(Dispatch)]
            assert len(sent) == len(set(sent)) == 30


async def test_a_dropped_socket_and_a_reconnect_keep_the_job(here: Coordinator) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("build")])
        here.notifier.send("kici_queue")
        build = await agent.expect(Dispatch)
        await agent.begin(build)
        await agent.drop()
        welcome = await agent.connect([AttemptRef(build.job_id, 1)])
        assert welcome.forget == ()
        assert await agent.end(build) == ""
        assert (await made.job("build"))["attempt"] == 1
        assert (await made.run())["status"] == "success"


async def test_a_job_moves_with_its_agent_to_another_coordinator(database_url: str) -> None:
    async with coordinator.running(database_url) as one, coordinator.running(database_url, dispatching=False) as two:
        agent = await one.agent()
        async with agents(agent):
            await agent.connect()
            made = await make_run(one.pool, [job("build")])
            one.notifier.send("kici_queue")
            build = await agent.expect(Dispatch)
            await agent.begin(build)
            old_socket, agent.url = agent.closed, two.url
            await agent.dial()
            await agent.send(agent.hello([AttemptRef(build.job_id, 1)]), seq=0)
            assert old_socket is not None
            assert (await old_socket).code == 4032
            assert await agent.end(build) == ""
            assert (await made.run())["status"] == "success"


async def test_an_agent_that_comes_back_without_its_job_settles_it_at_once(here: Coordinator) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("build")])
        here.notifier.send("kici_queue")
        first = await agent.expect(Dispatch)
        await agent.begin(first)
        await agent.drop()
        await agent.connect()
        second = await agent.expect(Dispatch, 2)
        assert (second.job_id, second.attempt) == (made["build"], 2)
        await agent.begin(second)
        await agent.step(second, "running")
        await agent.drop()
        await agent.connect()
        ended = await made.job("build")
        assert ended["status"] == "infra_lost"
        assert "came back without it" in ended["error_message"]
        assert await made.steps("build") == {(1, 0): "skipped", (2, 0): "failed"}
        assert (await made.run())["status"] == "failed"


async def test_what_is_not_the_agents_any_more_is_to_be_forgotten(here: Coordinator) -> None:
    agent = await here.agent()
    async with agents(agent):
        made = await make_run(here.pool, [job("build")])
        welcome = await agent.connect([AttemptRef(made["build"], 1)])
        assert welcome.forget == (AttemptRef(made["build"], 1),)


async def test_an_end_that_was_committed_but_not_acknowledged_is_no_reason_to_forget(here: Coordinator) -> None:
    """The agent may still have lines of its log to send."""
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        await make_run(here.pool, [job("build")])
        here.notifier.send("kici_queue")
        build = await agent.expect(Dispatch)
        await agent.begin(build)
        await agent.end(build)
        await agent.drop()
        welcome = await agent.connect([AttemptRef(build.job_id, 1)])
        assert welcome.forget == ()
        assert await agent.end(build) == ""


async def test_a_rejected_job_goes_elsewhere_without_using_up_an_attempt(here: Coordinator) -> None:
    full, free = await here.agent("full"), await here.agent("free")
    async with agents(full, free):
        await full.connect()
        made = await make_run(here.pool, [job("build")])
        here.notifier.send("kici_queue")
        first = await full.expect(Dispatch)
        await free.connect()
        assert await full.tell(JobRejected(first.job_id, first.attempt, "disk")) == ""
        second = await free.expect(Dispatch)
        assert (second.job_id, second.attempt) == (made["build"], 2)
        row = await made.queue_row("build")
        assert row
        assert row["attempt"] - row["rejections"] == 1


async def test_a_draining_agent_gets_nothing(here: Coordinator) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        agent.draining = True
        await agent.heartbeat()
        await make_run(here.pool, [job("build")])
        here.notifier.send(notify.QUEUE)
        assert (await here.dispatcher.run_once()).claimed == 0
        assert await here.pool.fetchval("select draining from agent_sessions where closed_at is null")
        agent.draining = False
        await agent.heartbeat()
        await agent.expect(Dispatch)


async def test_an_agent_without_room_gets_nothing_until_it_has_room_again_and_everybody_can_see_why(
    here: Coordinator,
) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        agent.not_taking = "disk: 10 bytes free"
        await agent.heartbeat()
        made = await make_run(here.pool, [job("build")])
        here.notifier.send(notify.QUEUE)
        assert (await here.dispatcher.run_once()).claimed == 0
        async with here.pool.acquire() as db:
            why = (await explain(db, [made["build"]]))[made["build"]]
            (shown,) = await listed(db)
        assert "has room (1 of 1): agent-1: disk: 10 bytes free" in why
        assert (shown.status, shown.facts["not_taking"]) == ("full", "disk: 10 bytes free")
        agent.not_taking = ""
        await agent.heartbeat()
        await agent.expect(Dispatch)
        async with here.pool.acquire() as db:
            (shown,) = await listed(db)
        assert (shown.status, "not_taking" in shown.facts) == ("idle", False)


async def test_goodbye_settles_what_the_agent_still_had(here: Coordinator) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("build")])
        here.notifier.send("kici_queue")
        build = await agent.expect(Dispatch)
        await agent.begin(build)
        await agent.send(Goodbye("host goes down"), seq=0)
        assert await agent.close_code() == 1000
        assert (await made.job("build"))["status"] == "queued"
        assert await here.pool.fetchval("select count(*) from agent_sessions where closed_at is null") == 0


async def test_a_cancellation_reaches_the_agent_and_again_after_a_reconnect(here: Coordinator) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("build")])
        here.notifier.send("kici_queue")
        build = await agent.expect(Dispatch)
        await agent.begin(build)
        async with here.pool.acquire() as db, db.transaction():
            result = await cancel_run(db, made.run_id, by="me", reason="cancelled by me", force=False)
        assert (result.status, result.cancelled_jobs) == ("cancelling", 1)
        result.wakes.send(here.notifier)
        assert await agent.expect(Cancel) == Cancel(build.job_id, 1, "cancelled by me")
        await agent.drop()
        await agent.connect([AttemptRef(build.job_id, 1)])
        assert await agent.expect(Cancel, 2) == Cancel(build.job_id, 1, "cancelled by me")
        async with here.pool.acquire() as db, db.transaction():
            result = await cancel_run(db, made.run_id, by="me", reason="again", force=True)
        result.wakes.send(here.notifier)
        assert (await agent.expect(Cancel, 3)).force
        assert await agent.end(build, "cancelled") == ""
        run = await made.run()
        assert (run["status"], run["failure_reason"], run["cancelled_by"]) == (
            "cancelled",
            "cancelled by me",
            "me",
        )


async def test_a_job_cancelled_before_its_acceptance_never_starts(here: Coordinator) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        made = await make_run(here.pool, [job("build")])
        here.notifier.send("kici_queue")
        build = await agent.expect(Dispatch)
        async with here.pool.acquire() as db, db.transaction():
            result = await cancel_run(db, made.run_id, by="me", reason="no", force=False)
        assert result.status == "cancelled"
        result.wakes.send(here.notifier)
        assert (await agent.expect(Cancel)).force
        assert await agent.begin(build) == "the job has ended as cancelled"
        await make_run(here.pool, [job("next")])
        here.notifier.send("kici_queue")
        await agent.expect(Dispatch, 2)


async def test_a_large_context_is_fetched_by_the_jobs_token(here: Coordinator) -> None:
    agent = await here.agent()
    async with agents(agent):
        await agent.connect()
        await make_run(here.pool, [job("build")], payload={"text": "x" * 200_000})
        here.notifier.send("kici_queue")
        build = await agent.expect(Dispatch)
        assert build.context is None
        async with httpx.AsyncClient(base_url=here.http_url, trust_env=False) as http:
            path = f"/api/v1/agent/jobs/{build.job_id}/context?attempt=1"
            answer = await http.get(path, headers={"Authorization": f"Bearer {build.job_token}"})
            assert answer.status_code == 200
            context = msgspec.msgpack.decode(answer.content, type=JobContext)
            assert len(context.event.payload["text"]) == 200_000
            assert (await http.get(path, headers={"Authorization": "Bearer kjt_" + "0" * 64})).status_code == 401
            await agent.begin(build)
            await agent.end(build)
            assert (await http.get(path, headers={"Authorization": f"Bearer {build.job_token}"})).status_code == 401


async def test_a_stopping_coordinator_sends_its_agents_away_and_their_jobs_run_on(database_url: str) -> None:
    async with coordinator.running(database_url) as two:
        async with coordinator.running(database_url) as one:
            agent = await one.agent()
            await agent.connect()
            made = await make_run(two.pool, [job("build")])
            one.notifier.send("kici_queue")
            build = await agent.expect(Dispatch)
            await agent.begin(build)
        async with agents(agent):
            assert await agent.close_code() == 1001
            agent.url = two.url
            await agent.connect([AttemptRef(build.job_id, 1)])
            assert await agent.end(build) == ""
            assert (await made.run())["status"] == "success"


@pytest.mark.parametrize("slots", [1, 3])
async def test_an_agent_is_never_sent_more_than_its_slots(here: Coordinator, slots: int) -> None:
    agent = await here.agent(slots=slots)
    async with agents(agent):
        await agent.connect()
        await make_run(here.pool, [job(f"job-{number}") for number in range(5)])
        here.notifier.send("kici_queue")
        await agent.expect(Dispatch, slots)
        assert (await here.dispatcher.run_once()).wished == 0
        await agent.begin(agent.all(Dispatch)[0])
        await agent.end(agent.all(Dispatch)[0])
        await agent.expect(Dispatch, slots + 1)
        assert len(agent.all(Dispatch)) == slots + 1


async def test_a_job_that_cannot_be_read_fails_and_keeps_no_other_from_being_sent(here: Coordinator) -> None:
    agent = await here.agent(slots=2)
    async with agents(agent):
        made = await make_run(here.pool, [job("bad"), job("good")])
        await here.pool.execute("update execution_jobs set matrix_values = '[]' where job_id = $1", made["bad"])
        await here.pool.execute(
            "update execution_jobs set definition = definition || '{\"newer\": 1}' where job_id = $1", made["good"]
        )
        await agent.connect()
        assert (await agent.expect(Dispatch)).name == "good"

        async def has_failed() -> bool:
            return (await made.statuses())["bad"] == "failed"

        await until(has_failed)
        assert "cannot be read" in (await made.job("bad"))["error_message"]


async def test_credentials_that_cannot_be_had_now_give_the_claim_back(here: Coordinator) -> None:
    agent = await here.agent()
    async with agents(agent):
        here.login_error = Unavailable("the vault is sealed")
        await agent.connect()
        made = await make_run(here.pool, [job("build")])
        here.notifier.send("kici_queue")

        async def was_given_back() -> bool:
            row = await made.queue_row("build")
            return bool(row and row["rejections"] and row["session_id"] is None)

        await until(was_given_back)
        here.login_error = None
        build = await agent.expect(Dispatch)
        row = await made.queue_row("build")
        assert row
        assert row["attempt"] - row["rejections"] == 1
        assert await agent.begin(build) == ""


async def test_credentials_that_can_never_be_had_fail_the_job(here: Coordinator) -> None:
    agent = await here.agent()
    async with agents(agent):
        here.login_error = Forbidden("the source has lost its key")
        await agent.connect()
        made = await make_run(here.pool, [job("build")])
        here.notifier.send("kici_queue")

        async def has_ended() -> bool:
            return bool((await made.run())["status"] == "failed")

        await until(has_ended)
        assert "the source has lost its key" in (await made.job("build"))["error_message"]
