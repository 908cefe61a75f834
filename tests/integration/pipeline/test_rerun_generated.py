"""Reruns of jobs that functions of the workflow have made: they are taken as they were made."""

from __future__ import annotations

import pytest
from asyncpg import Record

from kici.engine.evaluation import Evaluated, Generated, Values, pack
from kici.engine.lifecycle import JobEvent
from kici.engine.lockfile import LockGenerator, LockJob, LockNeed, LockRule
from kici.orchestrator.lifecycle.end import End, end
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.locked import lock_jobs
from tests.integration.pipeline.conftest import LOCK, Rig
from tests.integration.pipeline.test_rerun import asked
from tests.support import locks
from tests.support.locks import job

LISTED, SHARDS, TEST = "list", "shards", "test"
JOBS = (
    job(LISTED),
    job(TEST, needs=[LISTED], dynamic=("matrix",)),
    job("report", needs=[SHARDS, LockNeed(TEST, ("success", "failed"))]),
    job("lint"),
)
GENERATORS = (LockGenerator(SHARDS, ("linux",), needs=(LockNeed(LISTED),)),)
MADE = (
    job("shard-a", env={"PART": "a"}),
    job("shard-b", needs=["shard-a"], matrix={"n": ("1", "2")}),
    job("shard-docs", rules=(LockRule("docs", changed=("docs/**",)),)),
)


async def finish(rig: Rig, run_id: str, name: str, event: JobEvent = JobEvent.SUCCEED, output: str = "") -> None:
    """As an agent ends a job that runs."""
    job_id = await rig.pool.fetchval(
        "update execution_jobs set status = 'running' where run_id = $1 and job_name = $2 returning job_id",
        run_id,
        name,
    )
    assert job_id, name
    outputs = {"evaluate": output} if output else {"from": name}
    async with rig.pool.acquire() as db, db.transaction():
        locked = await lock_jobs(db, Limits(), [job_id])
        assert await end(db, locked, [End(job_id, event, outputs=outputs, reported=True)]) == {}


async def ran(rig: Rig, *failed: str, made: tuple[LockJob, ...] = MADE) -> Record:
    """A run that has ended, with all that was made while it went."""
    workflow = locks.workflow(jobs=JOBS, generators=GENERATORS)
    sha = rig.local.commit({LOCK: locks.lock(workflow), "src/a.py": "1"})
    rig.local.push()
    await rig.push(sha)
    await rig.done()
    run_id = (await rig.runs())[0]["run_id"]
    results = {
        f"init: {TEST}": pack(Evaluated(Values({"n": ("1", "2")}))),
        f"init: {SHARDS}": pack(Evaluated(Values(), tuple(Generated(one) for one in made))),
    }
    while names := await rig.pool.fetch(
        "select job_name from execution_jobs where status = 'queued' order by position"
    ):
        for row in names:
            name = row["job_name"]
            event = JobEvent.FAIL if name in failed else JobEvent.SUCCEED
            await finish(rig, run_id, name, event, results.get(name, ""))
    (run,) = await rig.runs()
    assert run["status"] in ("success", "failed")
    return run


async def rerun(rig: Rig, run: Record, mode: str, name: str = "") -> tuple[set[str], set[str]]:
    """Names of the jobs of the new run: those that run again, and those that are taken over."""
    await asked(rig, run, mode, name)
    (run_id,) = (await rig.done()).run_ids
    again = await rig.pool.fetch("select * from execution_jobs where run_id = $1", run_id)
    return (
        {row["job_name"] for row in again if row["reused_from"] is None},
        {row["job_name"] for row in again if row["reused_from"] is not None},
    )


INITS = {"init: test", "init: shards"}
TESTS = {"test (1)", "test (2)"}
MADE_NAMES = {"shard-a", "shard-b (1)", "shard-b (2)", "shard-docs"}


async def test_what_failed_is_run_again_as_it_was_made_and_nobody_is_asked(rig: Rig) -> None:
    run = await ran(rig, "shard-b (2)")
    again, reused = await rerun(rig, run, "failed")
    assert again == {"shard-b (2)", "report"}
    assert reused == {LISTED, "lint", *INITS, *TESTS, "shard-a", "shard-b (1)", "shard-docs"}
    rows = await rig.pool.fetch("select * from execution_jobs where job_name = 'shard-b (2)' order by created_at")
    first, second = rows
    for column in ("definition", "matrix_values", "position", "base_job_name", "generated_by", "carried"):
        assert first[column] == second[column], column
    assert (second["status"], second["matrix_values"]) == ("queued", {"n": "2"})


async def test_the_needs_of_generated_jobs_are_as_they_were_also_after_two_reruns(rig: Rig) -> None:
    run = await ran(rig, "shard-b (2)")
    await rerun(rig, run, "failed")
    second = await rig.pool.fetchrow("select * from execution_runs where parent_run_id = $1", run["run_id"])
    assert second
    await finish(rig, second["run_id"], "shard-b (2)", JobEvent.FAIL)
    again, _ = await rerun(rig, second, "failed")
    assert again == {"shard-b (2)", "report"}

    def needs(run_id: str) -> str:
        return f"""
          select job_name, upstream_name, run_on from execution_job_needs
           where run_id = '{run_id}' order by 1, 2"""

    third = await rig.pool.fetchval("select run_id from execution_runs where parent_run_id = $1", second["run_id"])
    expected = [tuple(row) for row in await rig.pool.fetch(needs(run["run_id"]))]
    assert [tuple(row) for row in await rig.pool.fetch(needs(third))] == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("shard-a", {"shard-a", "shard-b (1)", "shard-b (2)", "report"}),
        ("shard-b", {"shard-b (1)", "shard-b (2)", "report"}),
        ("shard-b (1)", {"shard-b (1)", "report"}),
        ("test", {*TESTS, "report"}),
        ("test (2)", {"test (2)", "report"}),
        ("report", {"report"}),
        ("lint", {"lint"}),
    ],
)
async def test_one_job_is_run_with_its_dependants_and_nobody_is_asked(rig: Rig, name: str, expected: set[str]) -> None:
    again, reused = await rerun(rig, await ran(rig), "job", name)
    assert again == expected
    assert again | reused == {LISTED, "lint", "report", *INITS, *TESTS, *MADE_NAMES}
    waiting = await rig.pool.fetch("select job_name from execution_jobs where status = 'queued'")
    assert waiting
    assert {row["job_name"] for row in waiting} <= again


@pytest.mark.parametrize(
    ("name", "asked_anew"),
    [("shards", {"shards"}), ("init: shards", {"shards"}), ("init: test", {"test"}), ("list", {"shards", "test"})],
)
async def test_a_generator_that_is_run_again_is_asked_again(rig: Rig, name: str, asked_anew: set[str]) -> None:
    """By its name, or because something that it needs is run again."""
    again, reused = await rerun(rig, await ran(rig), "job", name)
    assert asked_anew | {f"init: {one}" for one in asked_anew} | {"report"} <= again
    left = {"shards": MADE_NAMES, "test": TESTS}
    for generator, products in left.items():
        assert products.isdisjoint(again)
        assert products.isdisjoint(reused) is (generator in asked_anew)


async def test_a_generator_whose_jobs_could_not_be_made_is_asked_again(rig: Rig) -> None:
    run = await ran(rig, made=(job("lint"),))  # the run has one of that name
    again, reused = await rerun(rig, run, "failed")
    assert again == {"init: shards", "shards", "report"}
    assert {"init: test", *TESTS} <= reused
    again, reused = await rerun(rig, run, "job", "lint")
    assert again == {"lint"}
    assert {"init: shards", "shards"} <= reused


async def test_a_generator_that_made_nothing_made_nothing(rig: Rig) -> None:
    run = await ran(rig, made=())
    again, reused = await rerun(rig, run, "job", "report")
    assert (again, reused) == ({"report"}, {LISTED, "lint", *INITS, *TESTS})
    again, _ = await rerun(rig, run, "job", "shards")
    assert again == {"init: shards", "shards", "report"}


async def test_what_its_rules_skipped_is_skipped_again(rig: Rig) -> None:
    made = (job("shard-a"), job("shard-docs", needs=["shard-a"], rules=(LockRule("docs", changed=("docs/**",)),)))
    again, _ = await rerun(rig, await ran(rig, made=made), "job", "shard-a")
    assert again == {"shard-a", "shard-docs", "report"}
    row = await rig.pool.fetchrow("select * from execution_jobs where job_name = 'shard-docs' and reused_from is null")
    assert row
