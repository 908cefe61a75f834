"""Steps that run at the same time."""

from __future__ import annotations

from typing import Any

MEET = 'touch {mine}; until test -e {other}; do sleep 0.02; done; echo "{mine} met {other}"'


def meeting(mine: str, other: str) -> str:
    return MEET.format(mine=mine, other=other)


async def test_they_run_at_the_same_time_and_each_line_stands_with_its_step(jobs: Any) -> None:
    ended = await jobs.run_whole(
        f"""
        build = job("build", runs_on="linux", steps=[
            parallel(step("left", '''{meeting("l", "r")}'''), step("right", '''{meeting("r", "l")}''')), "echo after"])
        ci = workflow("ci", jobs=[build])
        """
    )
    assert ended.status == "success"
    assert bytes(jobs.sink.log[0]) == b"l met r\n"
    assert bytes(jobs.sink.log[1]) == b"r met l\n"


async def test_the_first_failure_cancels_the_others_and_only_their_processes(jobs: Any) -> None:
    ended = await jobs.run_whole(
        """
        build = job("build", runs_on="linux", steps=[
            parallel(step("waits", "touch begun; sleep 60"),
                     step("fails", "until test -e begun; do sleep 0.02; done; exit 8")),
            "echo never",
        ])
        ci = workflow("ci", jobs=[build])
        """
    )
    assert (ended.status, ended.error) == ("failed", "step 'fails' failed: " + jobs.sink.ended[1].error)
    assert jobs.statuses == {"waits": "cancelled", "fails": "failed", "echo never": "skipped"}
    assert "fail_fast" in jobs.sink.ended[0].error


async def test_without_fail_fast_all_end_by_themselves(jobs: Any) -> None:
    ended = await jobs.run_whole(
        """
        build = job("build", runs_on="linux", steps=[
            parallel(step("fails", "exit 8"), step("slow", "sleep 0.3; echo done"), fail_fast=False)])
        ci = workflow("ci", jobs=[build])
        """
    )
    assert ended.status == "failed"
    assert jobs.statuses == {"fails": "failed", "slow": "success"}
    assert "done" in jobs.sink.text


async def test_one_whose_failure_is_tolerated_cancels_nobody(jobs: Any) -> None:
    ended = await jobs.run_whole(
        """
        build = job("build", runs_on="linux", steps=[
            parallel(step("fails", "exit 8", continue_on_error=True), step("slow", "sleep 0.3"))])
        ci = workflow("ci", jobs=[build])
        """
    )
    assert ended.status == "success"
    assert jobs.statuses == {"fails": "failed", "slow": "success"}


async def test_the_end_of_one_leaves_the_processes_of_the_others_alone(jobs: Any) -> None:
    ended = await jobs.run_whole(
        """
        build = job("build", runs_on="linux", steps=[
            parallel(step("quick", "sleep 60 & touch quick; exit 0"),
                     step("slow", "until test -e quick; do sleep 0.02; done; sleep 0.5 & wait; echo survived"))])
        ci = workflow("ci", jobs=[build])
        """
    )
    assert ended.status == "success"
    assert "survived" in jobs.sink.text


async def test_each_has_an_environment_and_what_they_set_counts_after_the_group(jobs: Any) -> None:
    ended = await jobs.run_whole(
        """
        @step(env={"MINE": "a"})
        async def a(ctx):
            ctx.set_env("BOTH", "a")
            await ctx.sh('echo "A=1" >> "$KICI_ENV"; echo "$MINE ${THEIRS:-none} $BOTH"')
        @step(env={"THEIRS": "b"})
        async def b(ctx):
            ctx.set_env("BOTH", "b")
            await ctx.sh('echo "${MINE:-none} $THEIRS $BOTH"')
        build = job("build", runs_on="linux", steps=[parallel(a, b), 'echo "$BOTH $A ${MINE:-gone}"'])
        ci = workflow("ci", jobs=[build])
        """
    )
    assert ended.status == "success", jobs.sink.text
    assert bytes(jobs.sink.log[0]) == b"a none a\n"
    assert bytes(jobs.sink.log[1]) == b"none b b\n"
    assert bytes(jobs.sink.log[2]) == b"b 1 gone\n"


async def test_no_more_run_at_once_than_may_and_a_failed_one_is_tried_again(jobs: Any) -> None:
    ended = await jobs.run_whole(
        """
        one = "mkdir alone; sleep 0.05; rmdir alone"
        build = job("build", runs_on="linux", steps=[parallel(step("a", one), step("b", one), step(
            "c", "test -e tried || { touch tried; exit 1; }", retry=Retry(2, delay="10ms")), max_parallel=1)])
        ci = workflow("ci", jobs=[build])
        """
    )
    assert ended.status == "success", jobs.sink.text
    assert (2, 2, "success") in jobs.sink.steps


async def test_a_cancelled_job_cancels_all_of_them(jobs: Any) -> None:
    ended = await jobs.run_whole(
        f"""
        build = job("build", runs_on="linux", steps=[
            parallel(step("left", '''{meeting("l", "r")}; sleep 60'''),
                     step("right", '''{meeting("r", "l")}; sleep 60'''))])
        ci = workflow("ci", jobs=[build])
        """,
        cancel_at="r met l",
    )
    assert ended.status == "cancelled"
    assert jobs.statuses == {"left": "cancelled", "right": "cancelled"}
