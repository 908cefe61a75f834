"""Hooks of steps, jobs and workflows: which run, in which order, and what their failures do."""

from __future__ import annotations

import os
from typing import Any

import pytest

HOOKS = """
async def tell(ctx):
    print(f"hook sees {ctx.outcome.status} {ctx.outcome.failed_step}".rstrip())
async def broken(ctx):
    await ctx.sh("exit 9")
"""


def at_the_end(jobs: Any) -> dict[str, str]:
    return {name.removeprefix("hook: "): status for name, status in jobs.statuses.items() if "hook" in name}


@pytest.mark.parametrize(
    ("command", "status", "ran"), [("true", "success", "on_success"), ("exit 3", "failed", "on_failure")]
)
async def test_hooks_of_job_and_workflow_run_after_the_steps_by_how_they_ended(
    jobs: Any, command: str, status: str, ran: str
) -> None:
    ended = await jobs.run_whole(
        HOOKS
        + f"""
build = job("build", runs_on="linux", steps=[step("only", "{command}")], on_success=tell, on_failure=tell,
            on_cancel=tell, cleanup=tell)
ci = workflow("ci", jobs=[build], on_failure="echo workflow failed", cleanup="echo workflow cleaned")
"""
    )
    assert ended.status == status
    expected = dict.fromkeys(("on_success", "on_failure", "on_cancel"), "skipped") | {ran: "success"}
    assert at_the_end(jobs) == expected | {
        "cleanup": "success",
        "workflow hook: on_failure": "success" if status == "failed" else "skipped",
        "workflow hook: cleanup": "success",
    }
    sees = "hook sees success" if status == "success" else "hook sees failed only"
    assert jobs.sink.text.count(sees) == 2
    assert jobs.sink.text.index(sees) < jobs.sink.text.index("workflow cleaned")


@pytest.mark.parametrize(
    ("command", "hook", "reason"),
    [
        ("true", "on_success", "on_success hook failed: exit 9 failed: exit code 9"),
        ("true", "cleanup", "cleanup hook failed: exit 9 failed: exit code 9"),
        (
            "exit 3",
            "on_failure",
            "step 'only' failed: exit 3 failed: exit code 3 (on_failure hook failed: exit 9 failed: exit code 9)",
        ),
    ],
)
async def test_a_hook_that_fails_fails_the_job_or_is_added_to_its_reason(
    jobs: Any, command: str, hook: str, reason: str
) -> None:
    ended = await jobs.run_whole(
        HOOKS
        + f"""
build = job("build", runs_on="linux", steps=[step("only", "{command}")], {hook}=broken)
ci = workflow("ci", jobs=[build])
"""
    )
    assert (ended.status, ended.error) == ("failed", reason)


async def test_a_hook_has_a_limit_of_its_own(jobs: Any) -> None:
    ended = await jobs.run_whole(
        """
        build = job("build", runs_on="linux", steps=["true"], cleanup=hook("sleep 60", timeout="200ms"))
        ci = workflow("ci", jobs=[build])
        """
    )
    assert ended.status == "failed"
    assert "ran longer than its timeout of 0.2 s" in ended.error


async def test_the_cleanup_of_every_step_that_began_runs_also_after_its_failure(jobs: Any) -> None:
    ended = await jobs.run_whole(
        """
        build = job("build", runs_on="linux", steps=[
            step("first", "true", cleanup="echo first tidied", env={"A": "{branch}"}),
            step("second", 'echo "$A"; exit 3', cleanup="echo second tidied"),
            step("third", "true", cleanup="echo third tidied"),
        ])
        ci = workflow("ci", jobs=[build])
        """
    )
    assert ended.status == "failed"
    assert "first tidied" in jobs.sink.text
    assert "second tidied" in jobs.sink.text
    assert "third tidied" not in jobs.sink.text


async def test_a_step_whose_cleanup_fails_has_failed(jobs: Any) -> None:
    ended = await jobs.run_whole(
        """
        build = job("build", runs_on="linux", steps=[step("only", "true", cleanup="exit 6")])
        ci = workflow("ci", jobs=[build])
        """
    )
    assert ended.error == "step 'only' failed: cleanup failed: exit 6 failed: exit code 6"


async def test_what_runs_around_steps_fails_nothing(jobs: Any) -> None:
    ended = await jobs.run_whole(
        HOOKS
        + """
build = job("build", runs_on="linux", steps=["echo one", step("two", "echo two", rules=lambda ctx: False)],
            before_step="echo before", after_step=broken)
ci = workflow("ci", jobs=[build])
"""
    )
    assert ended.status == "success"
    assert jobs.sink.text.count("before") == 1
    assert "after_step failed: exit 9 failed: exit code 9; the step goes on" in jobs.sink.text


async def test_a_cancel_stops_the_step_first_and_then_runs_the_hooks_in_their_order(jobs: Any) -> None:
    ended = await jobs.run_whole(
        HOOKS
        + """
build = job("build", runs_on="linux", grace_period="8s", steps=[
    step("stubborn", "trap '' TERM; echo begun; while true; do sleep 0.1; done", on_cancel="echo 1", cleanup="echo 2"),
    step("never", "echo wrong"),
], on_failure="echo wrong", on_cancel="echo 3", cleanup="echo 4")
ci = workflow("ci", jobs=[build])
""",
        cancel_at="begun",
    )
    assert (ended.status, ended.error) == ("cancelled", "nobody wants it")
    assert [line for line in jobs.sink.text.splitlines() if line.strip() in "1234"] == ["1", "2", "3", "4"]
    assert jobs.statuses["stubborn"] == "cancelled"
    assert "wrong" not in jobs.sink.text


async def test_a_hook_that_fails_on_a_cancel_fails_the_job(jobs: Any) -> None:
    ended = await jobs.run_whole(
        HOOKS
        + """
build = job("build", runs_on="linux", steps=[step("long", "echo begun; sleep 60")], on_cancel=broken)
ci = workflow("ci", jobs=[build])
""",
        cancel_at="begun",
    )
    assert ended.status == "failed"
    assert ended.error == "nobody wants it (on_cancel hook failed: exit 9 failed: exit code 9)"


async def test_a_job_that_runs_out_of_time_is_cleaned_up_and_leaves_no_process(jobs: Any) -> None:
    ended = await jobs.run_whole(
        """
        build = job("build", runs_on="linux", timeout="1s", grace_period="6s",
                    steps=[step("long", "sleep 61 & echo $! > pid; wait")],
                    on_failure="echo told", on_cancel="echo wrong", cleanup="echo cleaned")
        ci = workflow("ci", jobs=[build])
        """
    )
    assert ended.status == "failed"
    assert "timeout of 1 s" in ended.error
    assert "told" in jobs.sink.text
    assert "cleaned" in jobs.sink.text
    assert "wrong" not in jobs.sink.text
    if jobs.sandbox.name == "none":
        assert not os.path.exists(f"/proc/{(jobs.root / 'src/pid').read_text().strip()}")
