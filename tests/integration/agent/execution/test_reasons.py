"""Why a step and its job did not succeed, told by a real runner: one sentence, and facts for programs."""

from __future__ import annotations

from typing import Any

import pytest

from kici.wire.runner import JobEnded, StepEnded
from tests.integration.agent.execution.conftest import SANDBOXES, Jobs

pytestmark = pytest.mark.parametrize("jobs", list(SANDBOXES), indirect=True)


async def run(jobs: Jobs, text: str, **facts: Any) -> tuple[JobEnded, StepEnded]:
    source = f"ci = workflow('ci', jobs=[job('build', runs_on='linux', steps=[step('only', {text!r})])])"
    ended = await jobs.run_whole(source, **facts)
    return ended, jobs.sink.ended[0]


@pytest.mark.parametrize(
    ("command", "reason", "code", "signal", "sentence"),
    [
        ("exit 3", "exit_code", 3, "", "exit 3 failed: exit code 3"),
        ("exit 255", "exit_code", 255, "", "exit 255 failed: exit code 255"),
        ("sh -c 'kill -9 $$'; true", "exit_code", 137, "SIGKILL", "exit code 137 (128 + 9: SIGKILL)"),
        ("exit 143", "exit_code", 143, "SIGTERM", "exit 143 failed: exit code 143 (128 + 15: SIGTERM)"),
        ("kill -SEGV $$", "signal", None, "SIGSEGV", "kill -SEGV $$ failed: killed by SIGSEGV"),
        ("exec no-such-program", "exit_code", 127, "", "exec no-such-program failed: exit code 127"),
    ],
)
async def test_a_command_that_fails_is_named_with_its_code_and_signal(
    jobs: Jobs, command: str, reason: str, code: int | None, signal: str, sentence: str
) -> None:
    ended, step = await run(jobs, command)
    assert (step.status, step.reason, step.exit_code, step.signal) == ("failed", reason, code, signal)
    assert sentence in step.error
    assert (ended.status, ended.reason, ended.exit_code, ended.signal) == ("failed", reason, code, signal)
    assert ended.error == f"step 'only' failed: {step.error}"


async def test_the_last_lines_of_its_output_stand_beside_the_reason(jobs: Jobs) -> None:
    _, step = await run(jobs, "seq 1 50; printf '10%%\\r100%%\\r\\n'; echo '\x1b[31mwrong\x1b[0m' >&2; exit 1")
    assert step.last_lines.splitlines() == [*map(str, range(43, 51)), "100%", "wrong"]
    assert step.error.endswith("exit code 1; its last output: wrong")


async def test_of_a_command_that_is_read_as_a_value_the_error_stream_is_shown(jobs: Jobs) -> None:
    await jobs.run_whole("""
        @job(runs_on="linux")
        async def build(ctx: Ctx) -> None:
            await ctx.sh("echo complaint >&2; echo '{}'; exit 1").json()
        ci = workflow("ci", jobs=[build])
    """)
    assert jobs.sink.ended[0].last_lines == "complaint"


async def test_what_a_quiet_command_writes_is_shown_nowhere(jobs: Jobs) -> None:
    await jobs.run_whole("""
        @job(runs_on="linux")
        async def build(ctx: Ctx) -> None:
            await ctx.sh("echo private; echo private >&2; exit 1", quiet=True)
        ci = workflow("ci", jobs=[build])
    """)
    step = jobs.sink.ended[0]
    assert step.exit_code == 1
    assert "private" not in step.last_lines + step.error.partition(" failed: ")[2]


async def test_secrets_are_hidden_in_last_lines_and_sentence(jobs: Jobs) -> None:
    ended = await jobs.run_whole("""
        @job(runs_on="linux")
        async def build(ctx: Ctx) -> None:
            ctx.mask("hunter2-hunter2")
            await ctx.sh("for i in 1 2 3; do echo is hunter2-hunter2; done; exit 1")
        ci = workflow("ci", jobs=[build])
    """)
    step = jobs.sink.ended[0]
    assert step.last_lines == "is ***\nis ***\nis ***"
    assert "its last output: is ***" in step.error
    assert "its last output: is ***" in ended.error


async def test_a_timeout_shows_what_was_written_last(jobs: Jobs) -> None:
    ended = await jobs.run_whole("""
        ci = workflow("ci", jobs=[job("build", runs_on="linux", steps=[
            step("only", "echo waiting for the database; sleep 100", timeout="1s")])])
    """)
    step = jobs.sink.ended[0]
    assert (step.reason, ended.reason) == ("timeout", "timeout")
    assert step.error == "it ran longer than its timeout of 1 s; its last output: waiting for the database"


async def test_code_that_raises_has_its_exception_as_the_reason(jobs: Jobs) -> None:
    ended = await jobs.run_whole("""
        @job(runs_on="linux")
        def build(ctx: Ctx) -> None:
            raise ValueError("no\\nidea")
        ci = workflow("ci", jobs=[build])
    """)
    assert (ended.reason, ended.error) == ("error", "step 'build' failed: ValueError: no idea")


async def test_a_full_disk_is_named_when_code_meets_it(jobs: Jobs) -> None:
    ended = await jobs.run_whole("""
        @job(runs_on="linux")
        def build(ctx: Ctx) -> None:
            with open("/dev/full", "w") as file:
                file.write("x")
        ci = workflow("ci", jobs=[build])
    """)
    assert ended.reason == "disk_full"
    assert "No space left on device" in ended.error


async def test_a_cancelled_job_says_why_and_nothing_of_what_its_steps_made_of_it(jobs: Jobs) -> None:
    ended, step = await run(jobs, "echo ready; sleep 100", cancel_at="ready")
    assert (ended.status, ended.reason, ended.error) == ("cancelled", "cancelled", "nobody wants it")
    assert (step.status, step.reason, step.error) == ("cancelled", "cancelled", "nobody wants it")


async def test_a_hook_that_fails_does_not_hide_why_the_step_did(jobs: Jobs) -> None:
    ended = await jobs.run_whole("""
        ci = workflow("ci", jobs=[job("build", runs_on="linux", cleanup="exit 9", steps=[step("only", "exit 3")])])
    """)
    assert (ended.exit_code, ended.error) == (
        3,
        "step 'only' failed: exit 3 failed: exit code 3 (cleanup hook failed: exit 9 failed: exit code 9)",
    )
