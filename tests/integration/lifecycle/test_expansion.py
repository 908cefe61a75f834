"""Jobs that take the place of one that stood for them, in the transaction in which their evaluation ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kici.engine.evaluation import Evaluated, Generated, Values, pack
from kici.engine.lockfile import LockGenerator, LockJob, LockNeed, LockRule
from kici.orchestrator.lifecycle.batch import Batch
from kici.orchestrator.lifecycle.frames import Item, Taken
from kici.orchestrator.store import jobs as stored
from kici.wire.agent import JobStatusChanged
from tests.integration.lifecycle.conftest import Rig, now_ms
from tests.support.locks import job
from tests.support.runs import Made


def generator(name: str, *needs: str) -> LockGenerator:
    return LockGenerator(name, ("linux",), needs=tuple(LockNeed(need) for need in needs))


def gives(*jobs: LockJob, values: Values = Values()) -> dict[str, Any]:
    return {"outputs": {"evaluate": pack(Evaluated(values, tuple(Generated(one) for one in jobs)))}}


async def evaluated(rig: Rig, made: Made, name: str, **result: Any) -> None:
    await rig.begin(made)
    assert await rig.end(made[f"init: {name}"], **result) == ""
    await made.learn()


async def test_a_matrix_takes_the_place_of_its_stand_in_with_the_end_of_its_evaluation(rig: Rig) -> None:
    made = await rig.make(
        job("build"), job("test", needs=["build"], dynamic=("matrix",)), job("report", needs=["test", "build"])
    )
    assert await made.statuses() == {
        "build": "queued", "init: test": "pending", "test": "pending", "report": "pending",
    }  # fmt: skip
    await rig.begin(made)
    await rig.end(made["build"], outputs={"build": 7})
    assert (await made.job("init: test"))["status"] == "queued"
    await evaluated(rig, made, "test", **gives(values=Values({"x": ("1", "2")})))
    assert await made.statuses() == {
        "build": "success", "init: test": "success", "test (1)": "queued", "test (2)": "queued", "report": "pending",
    }  # fmt: skip
    assert await made.needs() == {
        "init: test": ["build"],
        "test (1)": ["build"],
        "test (2)": ["build"],
        "report": ["build", "test (1)", "test (2)"],
    }
    assert (await made.job("init: test"))["outputs"] is None
    assert await made.steps("test (1)") == {(1, 0): "pending"}
    async with rig.pool.acquire() as db:
        orders = (await stored.orders(db, [made["test (2)"]]))[made["test (2)"]]
    assert orders.own_definition is not None
    assert orders.own_definition.matrix == {"x": ("1", "2")}
    assert orders.matrix == {"x": "2"}
    assert [(one.name, one.outputs) for one in orders.needs] == [("build", {"build": 7})]
    await rig.begin(made)
    for name in ("test (1)", "test (2)", "report"):
        await rig.begin(made)
        await rig.end(made[name])
    assert (await made.run())["status"] == "success"


async def test_generated_jobs_say_who_made_them_to_themselves_and_to_those_that_need_them(rig: Rig) -> None:
    made = await rig.make(job("report", needs=["shards"]), generators=[generator("shards")])
    await evaluated(rig, made, "shards", **gives(job("one"), job("two", needs=["one"])))
    assert await made.statuses() == {
        "init: shards": "success", "one": "queued", "two": "pending", "report": "pending",
    }  # fmt: skip
    await rig.begin(made)
    await rig.end(made["one"], outputs={"one": 1})
    async with rig.pool.acquire() as db:
        orders = await stored.orders(db, [made["one"], made["report"]])
    assert orders[made["one"]].generated_by == "shards"
    assert {(one.name, one.generated_by) for one in orders[made["report"]].needs} == {
        ("one", "shards"),
        ("two", "shards"),
    }
    assert orders[made["report"]].own_definition is None


async def test_an_empty_group_lets_its_dependants_start_at_once_also_through_another_empty_group(rig: Rig) -> None:
    made = await rig.make(
        job("after", needs=["first", "second"]),
        job("other", needs=["first"]),
        generators=[generator("first"), generator("second", "first")],
    )
    await evaluated(rig, made, "first", **gives())
    assert await made.statuses() == {
        "init: first": "success",
        "init: second": "queued",
        "second": "pending",
        "after": "pending",
        "other": "queued",
    }
    await evaluated(rig, made, "second", **gives())
    assert (await made.statuses())["after"] == "queued"
    assert await made.needs() == {}


async def test_a_crash_before_the_commit_loses_nothing_and_the_end_told_again_does_it_once(rig: Rig) -> None:
    made = await rig.make(job("report", needs=["shards"]), generators=[generator("shards")])
    await rig.begin(made)
    init = made["init: shards"]
    frame = JobStatusChanged(init, 1, "success", now_ms(), **gives(job("one"), job("two")))
    before = await made.statuses(), await made.needs()

    class Crash(Exception):
        pass

    batch = Batch(rig.limits, [Item(1, rig.sessions["agent-1"], frame)])
    with pytest.raises(Crash):
        async with rig.pool.acquire() as db, db.transaction():
            await batch.apply(db)
            assert batch.outcomes[1] == Taken()
            assert await db.fetchval("select count(*) from execution_jobs where job_name in ('one', 'two')") == 2
            raise Crash
    assert (await made.statuses(), await made.needs()) == before
    for _ in range(2):  # the agent has had no answer, and tells it again
        assert await rig.say(frame) == ""
    assert await made.statuses() == {
        "init: shards": "success", "one": "queued", "two": "queued", "report": "pending",
    }  # fmt: skip


@pytest.mark.parametrize("status", ["failed", "cancelled", "skipped"])
async def test_an_evaluation_that_does_not_succeed_skips_what_it_was_for_and_the_run_ends(
    rig: Rig, status: str
) -> None:
    made = await rig.make(job("after", needs=["shards"]), generators=[generator("shards")])
    await evaluated(rig, made, "shards", status=status, **gives(job("one")))
    assert await made.statuses() == {"init: shards": status, "shards": "skipped", "after": "skipped"}
    assert (await made.job("shards"))["error_message"] == f"init: shards ended as {status} (needed success)"
    assert (await made.run())["completed_at"] is not None


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        ({}, "no result that can be read"),
        ({"outputs": {"evaluate": "x" * 100}}, "result cannot be read"),
        ({"outputs": {"evaluate": {"jobs": []}}}, "no result that can be read"),
        (gives(*(job(f"j{n}") for n in range(101))), "made 101 jobs; the limit is 100"),
        (gives(job("after")), "the run has one of that name already"),
        (gives(job("one", needs=["after"])), "in a circle"),
        (gives(job("one", steps=())), "has no steps"),
    ],
)
async def test_a_result_that_cannot_be_fails_the_stand_in_with_a_sentence_and_the_run_ends(
    rig: Rig, result: dict[str, Any], sentence: str
) -> None:
    made = await rig.make(job("after", needs=["shards"]), generators=[generator("shards")])
    await evaluated(rig, made, "shards", **result)
    assert await made.statuses() == {"init: shards": "success", "shards": "failed", "after": "skipped"}
    stand_in = await made.job("shards")
    assert sentence in stand_in["error_message"]
    assert stand_in["init_failure"]["category"] == "matrix_expansion"
    run = await made.run()
    assert (run["status"], run["failure_reason"]) == ("failed", "Failed jobs: shards")


async def test_what_the_jobs_say_of_themselves_holds_at_once(rig: Rig) -> None:
    made = await rig.make(
        job("after", needs=[LockNeed("shards", ("success", "skipped", "failed"))]), generators=[generator("shards")],
        changed_files=("README",),
    )  # fmt: skip
    await evaluated(
        rig,
        made,
        "shards",
        **gives(
            job("rule", rules=(LockRule("src", ("src/**",)),)),
            job("secret", environment="prod"),
            job("group", env={"X": "{tag}"}),
            job("child", needs=["rule"]),
        ),
    )
    assert await made.statuses() == {
        "init: shards": "success",
        "rule": "skipped",
        "secret": "failed",
        "group": "queued",
        "child": "skipped",
        "after": "pending",
    }
    assert (await made.job("rule"))["error_message"] == "rule 'src': no changed file matches src/**"
    assert "environments and their secrets are not there yet" in (await made.job("secret"))["error_message"]
    assert await made.steps("rule") == {(1, 0): "skipped"}


async def test_generated_jobs_keep_to_their_concurrency_group_and_their_window(rig: Rig) -> None:
    made = await rig.make(job("test", dynamic=("concurrency", "matrix"), max_parallel=2))
    await evaluated(rig, made, "test", **gives(values=Values({"x": ("1", "2", "3")}, concurrency="one at a time")))
    statuses = list((await made.statuses()).values())[1:]
    assert sorted(statuses) == ["pending", "pending", "queued"]
    assert (await made.job("test (1)"))["concurrency_group"] == "one at a time"


async def test_two_evaluations_that_end_at_the_same_time_both_count(rig: Rig) -> None:
    made = await rig.make(job("after", needs=["a", "b"]), generators=[generator("a"), generator("b")])
    await rig.begin(made)
    other = rig.new_writer()
    service = asyncio.create_task(other.run())
    try:
        frames = [
            JobStatusChanged(made[f"init: {name}"], 1, "success", now_ms(), **gives(job(f"{name}-1"), job(f"{name}-2")))
            for name in "ab"
        ]
        await asyncio.gather(rig.say(frames[0]), other.submit(rig.sessions["agent-1"], frames[1]))
    finally:
        service.cancel()
        await asyncio.wait([service])
    assert (await made.needs())["after"] == ["a-1", "a-2", "b-1", "b-2"]
    assert list((await made.statuses()).values()).count("queued") == 4


async def test_cancelling_the_run_cancels_what_stands_for_jobs_and_nothing_comes_of_a_late_result(rig: Rig) -> None:
    made = await rig.make(job("after", needs=["shards"]), generators=[generator("shards")])
    await rig.begin(made)
    await rig.cancel(made)
    assert await made.statuses() == {"init: shards": "cancelling", "shards": "cancelled", "after": "cancelled"}
    assert await rig.end(made["init: shards"], **gives(job("one"))) == ""
    assert await made.statuses() == {"init: shards": "success", "shards": "cancelled", "after": "cancelled"}
    assert (await made.run())["completed_at"] is not None
