from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kici.agent.execution import RunnerFailed
from kici.agent.sandbox.none import NoSandbox
from kici.engine.lockfile import LockStep, Retry
from kici.runner.processes import gone, is_zombie
from kici.wire.runner import JobEnded
from tests.integration.agent.execution.conftest import SECONDS, Jobs, lock_job
from tests.integration.agent.execution.impostor import Impostor

STEP_IS_COMMAND = """
ci = workflow("ci", jobs=[job("build", runs_on="linux", steps=[step("a", {command!r})])])
"""


def command(text: str, **options: Any) -> tuple[str, LockStep]:
    return STEP_IS_COMMAND.format(command=text), LockStep("a", text, **options)


def function(body: str) -> str:
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"import asyncio, os, time\n@job(runs_on='linux')\n{lines.strip()}\nci = workflow('ci', jobs=[build])\n"


async def run_until(jobs: Jobs, source: str, step: LockStep | str, text: str, then: Any, **options: Any) -> JobEnded:
    """Run a job of one step; when `text` is in its log do `then`."""
    jobs.write(source)
    async with jobs.prepared() as execution, asyncio.timeout(SECONDS):
        running = asyncio.create_task(
            execution.run(jobs.start(execution, lock_job("build", [step], **options)), sink=jobs.sink)
        )
        await jobs.sink.until_logged(text)
        then(execution)
        return await running


def pids(jobs: Jobs) -> list[int]:
    return [int(line.split()[1]) for line in jobs.sink.text.splitlines() if line.startswith("pid ")]


async def test_a_step_is_stopped_at_its_timeout_with_all_its_processes(jobs: Any) -> None:
    source, step = command(
        "echo pid $$; (sleep 100 & echo pid $!; setsid sleep 100 & echo pid $!; wait)", timeout_ms=500
    )
    ended = await jobs.run(source, step)
    assert ended.status == "failed"
    assert "it ran longer than its timeout of 0.5 s" in ended.error
    assert len(pids(jobs)) == 3
    assert all(is_zombie(pid) for pid in pids(jobs))


async def test_a_coroutine_is_cancelled_at_its_timeout_and_may_clean_up(jobs: Any) -> None:
    ended = await jobs.run(
        function("""
async def build(ctx: Ctx) -> None:
    try:
        await asyncio.sleep(100)
    finally:
        await ctx.sh("echo cleaned up")
"""),
        LockStep("build", timeout_ms=300),
    )
    assert ended.status == "failed"
    assert "cleaned up" in jobs.sink.text


async def test_a_thread_that_waits_for_a_command_is_stopped_with_it(jobs: Any) -> None:
    ended = await jobs.run(
        function("def build(ctx: Ctx) -> None:\n    ctx.sh('echo pid $$; sleep 100').run()"),
        LockStep("build", timeout_ms=300),
    )
    assert ended.status == "failed"
    assert "timeout of 0.3 s" in ended.error
    assert is_zombie(pids(jobs)[0])


@pytest.mark.parametrize(
    "body",
    [
        "def build(ctx: Ctx) -> None:\n    while True: time.sleep(0.01)",
        "async def build(ctx: Ctx) -> None:\n    while True: pass",
    ],
    ids=["thread", "busy loop"],
)
async def test_code_that_nothing_stops_is_killed_after_its_timeout(
    jobs: Any, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kici.agent.execution.STEP_S", 0.5)
    ended = await jobs.run(function(body), LockStep("build", timeout_ms=200, continue_on_error=True))
    assert ended.status == "failed"
    assert "step 'build' did not stop at its timeout of 0.2 s" in ended.error
    assert jobs.sink.ends == ["failed"]


async def test_a_job_that_runs_too_long_fails_after_its_grace_period(jobs: Any) -> None:
    source, step = command("trap 'echo asked' TERM; while :; do sleep 0.05; done")
    ended = await jobs.run(source, step, timeout_ms=300, grace_period_ms=300)
    assert ended.status == "failed"
    assert ended.error == "job_timeout: the job ran longer than its timeout of 0.3 s"
    assert "asked" in jobs.sink.text
    assert jobs.sink.ends == ["cancelled"]


async def test_a_cancelled_job_may_end_by_itself_in_its_grace_period(jobs: Any) -> None:
    source, step = command("trap 'echo goodbye; exit 0' TERM; echo ready; while :; do sleep 0.02; done")
    ended = await run_until(jobs, source, step, "ready", lambda execution: execution.cancel("not needed any more"))
    assert (ended.status, ended.error) == ("cancelled", "not needed any more")
    assert "goodbye" in jobs.sink.text
    assert jobs.sink.ends == ["cancelled"]


async def test_a_cancelled_step_that_ignores_sigterm_is_killed_at_the_end_of_the_grace_period(jobs: Any) -> None:
    source, step = command("trap '' TERM; echo pid $$; while :; do sleep 0.02; done")
    ended = await run_until(jobs, source, step, "pid", lambda one: one.cancel("stop"), grace_period_ms=200)
    assert ended.status == "cancelled"
    assert is_zombie(pids(jobs)[0])


async def test_a_command_that_a_def_step_returns_after_the_cancel_is_not_begun(jobs: Any) -> None:
    ended = await jobs.run_whole(
        """
        import time
        @step
        def late(ctx):
            print("ready", flush=True)
            while not ctx.cancelled:
                time.sleep(0.005)
            time.sleep(0.05)
            return ctx.sh("echo begun; sleep 60")
        ci = workflow("ci", jobs=[job("build", runs_on="linux", steps=[late])])
        """,
        cancel_at="ready",
    )
    assert ended.status == "cancelled"
    assert jobs.sink.last.error == "nobody wants it"
    assert "begun" not in jobs.sink.text


async def test_force_kills_at_once(jobs: Any) -> None:
    source, step = command("trap '' TERM; echo pid $$; while :; do sleep 0.02; done")
    ended = await run_until(
        jobs, source, step, "pid", lambda one: one.cancel("stop", force=True), grace_period_ms=1_000_000
    )
    assert ended.status == "cancelled"
    assert jobs.sink.ends == ["cancelled"]
    assert is_zombie(pids(jobs)[0])


async def test_a_step_can_wait_for_the_cancellation(jobs: Any) -> None:
    source = function("""
def build(ctx: Ctx) -> None:
    print("ready")
    while not ctx.cancelled:
        time.sleep(0.01)
    print("seen:", ctx.cancelled.reason)
""")
    ended = await run_until(jobs, source, "build", "ready", lambda one: one.cancel("enough"))
    assert ended.status == "cancelled"
    assert "seen: enough" in jobs.sink.text


async def test_a_cancel_before_the_job_began_ends_it(jobs: Any) -> None:
    source, step = command("echo begun; sleep 100")
    jobs.write(source)
    async with jobs.prepared() as execution, asyncio.timeout(SECONDS):
        execution.cancel("too late")
        ended = await execution.run(
            jobs.start(execution, lock_job("build", [step], grace_period_ms=100)), sink=jobs.sink
        )
    assert ended.status == "cancelled"


async def test_a_cancel_ends_the_pause_before_another_attempt(jobs: Any) -> None:
    retry = Retry(2, delay_ms=1_000_000, max_delay_ms=1_000_000)
    jobs.write(command("exit 1")[0])
    async with jobs.prepared() as execution, asyncio.timeout(SECONDS):
        job = lock_job("build", [LockStep("a", "exit 1", retry=retry)])
        running = asyncio.create_task(execution.run(jobs.start(execution, job), sink=jobs.sink))
        await jobs.sink.until(lambda: jobs.sink.ends == ["failed"])
        execution.cancel("enough")
        ended = await running
    assert ended.status == "cancelled"
    assert jobs.sink.ends == ["failed", "cancelled"]


async def test_a_runner_that_is_killed_fails_its_job_and_leaves_nothing(jobs: Any) -> None:
    source, step = command("echo pid $$; echo runner $PPID; setsid sleep 100 & echo pid $!; wait")

    def kill(execution: Any) -> None:
        runner = next(int(line.split()[1]) for line in jobs.sink.text.splitlines() if line.startswith("runner"))
        os.kill(runner, signal.SIGKILL)

    ended = await run_until(jobs, source, step, "\npid", kill)
    said = "the runner was killed by SIGKILL before the job ended"
    peak = ended.peak_memory_bytes  # None where there are no control groups
    assert ended == JobEnded("failed", said, reason="runner", signal="SIGKILL", peak_memory_bytes=peak)
    assert jobs.sink.ends == ["failed"]
    assert len(pids(jobs)) == 2
    assert all(is_zombie(pid) for pid in pids(jobs))


async def test_a_step_that_ends_the_runner_fails_its_job(jobs: Any) -> None:
    ended = await jobs.run(function("def build(ctx: Ctx) -> None:\n    os._exit(7)"))
    assert ended.error == "the runner exited with code 7 before the job ended"


@pytest.mark.parametrize("code", [0, 3, "bye"])
async def test_sys_exit_fails_the_step_only(jobs: Any, code: object) -> None:
    ended = await jobs.run(function(f"async def build(ctx: Ctx) -> None:\n    raise SystemExit({code!r})"))
    assert ended.status == "failed"
    assert "sys.exit" in ended.error


async def test_what_a_step_leaves_running_ends_with_it(jobs: Any) -> None:
    text = "setsid sh -c 'sleep 100 & sleep 100' >/dev/null 2>&1 & echo pid $!; sleep 100 & echo pid $!"
    ended = await jobs.run(*command(text))
    assert ended.status == "success"
    assert len(pids(jobs)) == 2
    assert all(is_zombie(pid) for pid in pids(jobs))


async def test_a_child_that_keeps_the_output_open_does_not_delay_the_step(jobs: Any) -> None:
    source = function("""
async def build(ctx: Ctx) -> str:
    text = await ctx.sh("(trap 'echo late; exit' TERM; while :; do sleep 0.02; done) & echo early").text()
    await ctx.sh("echo next")
    return text
""")
    ended = await jobs.run(source)
    assert ended.outputs == {"build": "early"}
    assert "next" in jobs.sink.text
    assert "late" in jobs.sink.text


async def test_fifty_megabytes_without_a_newline_arrive(jobs: Any) -> None:
    ended = await jobs.run(*command("head -c 50000000 /dev/zero | tr '\\0' x"))
    assert ended.status == "success"
    assert len(jobs.sink.log[0]) == 50_000_000


@pytest.mark.parametrize(
    "body",
    [
        "async def build(ctx: Ctx) -> None:\n    await ctx.sh('yes')",
        "def build(ctx: Ctx) -> None:\n    while True: print('y' * 1000)",
        "async def build(ctx: Ctx) -> None:\n    while True: os.write(1, b'y' * 1000)",
    ],
    ids=["command", "print", "descriptor"],
)
async def test_a_host_that_is_slow_slows_the_step_and_can_still_end_it(jobs: Any, body: str) -> None:
    blocked = asyncio.Event()

    async def slow() -> None:
        blocked.set()
        await asyncio.Event().wait()

    jobs.sink.slow = slow
    jobs.write(function(body))
    async with jobs.prepared() as execution, asyncio.timeout(SECONDS):
        running = asyncio.create_task(
            execution.run(jobs.start(execution, lock_job("build", ["build"], grace_period_ms=100)), sink=jobs.sink)
        )
        await blocked.wait()
        execution.cancel("enough")
        ended = await running
    assert ended.status == "cancelled"
    assert len(jobs.sink.log[0]) <= 65_536


async def test_what_outlives_its_step_may_still_print(jobs: Any) -> None:
    ended = await jobs.run(
        """
        import asyncio, os, threading, time

        def chatter(write):
            while True:
                write()

        @step
        async def first(ctx: Ctx) -> None:
            threading.Thread(target=chatter, args=(lambda: os.write(1, b"x\\n"),), daemon=True).start()
            threading.Thread(target=chatter, args=(lambda: print("y"),), daemon=True).start()

        others = [step(str(n), "true") for n in range(9)]
        ci = workflow("ci", jobs=[job("build", runs_on="linux", steps=[first, *others])])
        """,
        "first",
        *(LockStep(str(n), "true") for n in range(9)),
    )
    assert ended.status == "success", ended


async def test_a_runner_ends_with_its_host_whatever_its_step_does(directory: Path) -> None:
    source = Path(__file__).parents[4]
    program = f"""
import asyncio, sys
from pathlib import Path
from kici.agent.sandbox.none import NoSandbox
from kici.engine.lockfile import LockStep
from tests.integration.agent.execution.conftest import Jobs, lock_job

async def main():
    jobs = Jobs(Path({str(directory)!r}), NoSandbox())
    jobs.write('''
import subprocess
@job(runs_on="linux")
async def build(ctx: Ctx) -> None:
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print("pids", child.pid, flush=True)
    while True: pass
ci = workflow("ci", jobs=[build])
''')
    async with jobs.prepared() as execution:
        start = jobs.start(execution, lock_job("build", ["build"]))
        running = asyncio.create_task(execution.run(start, sink=jobs.sink))
        await jobs.sink.until_logged("pids")
        print(execution._box.pid, jobs.sink.text.split()[1], flush=True)
        await running

asyncio.run(main())
"""
    environment = os.environ | {"PYTHONPATH": f"{source / 'src'}:{source}"}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as host:
        assert host.stdout
        try:
            found = [int(word) for word in host.stdout.readline().split()]
        finally:
            host.kill()
    assert len(found) == 2
    async with asyncio.timeout(SECONDS):
        assert await gone(found, 10)


@pytest.mark.parametrize(
    ("says", "complaint"),
    [
        ("sock.sendall(b'garbage!!!')", "over the limit"),
        ("sock.sendall(b'\\0\\0\\0\\2{}')", "could not be read"),
        ("say(Output(0, b'x'))", "output of step 0"),
        ("say(StepStarted(0)); say(Output(0, b'x' * 70000))", "70,000 bytes of output at once"),
        ("say(StepStarted(1))", "start of step 1, attempt 1"),
        ("say(StepStarted(0)); say(StepStarted(0, 2))", "start of step 0, attempt 2"),
        ("say(StepStarted(0)); say(StepEnded(0, 'failed', final=False)); say(StepStarted(0, 2))", "attempt 2 of 1"),
        ("say(StepStarted(0)); say(StepEnded(0, 'great'))", "step status 'great'"),
        ("say(StepStarted(0)); say(JobEnded('success'))", "end of the job while a step runs"),
        ("say(JobEnded('success'))", "success after 0 of 1 steps"),
        ("say(JobEnded('cancelled'))", "a cancelled job that nobody cancelled"),
        ("say(Ready(1))", "Ready now"),
        ("say(Pong())", "an answer that nobody asked for"),
        ("say(ArtifactEnd(1))", "an artifact that it does not upload"),
        ("say(ArtifactBegin(1, 'a')); say(ArtifactBegin(1, 'a'))", "request 1 twice"),
        ("say(CacheFetch(1, 'a')); say(CacheBegin(1, 'a'))", "request 1 twice"),
        ("say(Annotated(0, 'notice', 'x'))", "a remark of step 0"),
        ("say(Summarized(0, 'x'))", "a summary of step 0"),
        ("say(StepEnded(1, 'skipped'))", "end of step 1, which has not begun"),
        ("say(StepEnded(0, 'success'))", "end of step 0"),
        ("say(StepStarted(0)); say(StepEnded(0, 'failed')); say(JobEnded('success'))", "success although step 'build'"),
        ("say(StepStarted(0)); say(StepEnded(0, 'success')); say(JobEnded('skipped'))", "after a step that has run"),
        ("say(Mask('x' * 70000))", "70,000 characters to mask"),
    ],
)
async def test_a_runner_that_breaks_the_protocol_fails_its_job(directory: Path, says: str, complaint: str) -> None:
    jobs = Jobs(directory, Impostor(says))
    async with jobs.prepared() as execution, asyncio.timeout(SECONDS):
        ended = await execution.run(jobs.start(execution, lock_job("build", ["build"])), sink=jobs.sink)
    assert ended.status == "failed"
    assert "broke the protocol" in ended.error
    assert complaint in ended.error


async def test_a_runner_that_does_not_start_says_why(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kici.agent.sandbox.none.runner_argv", lambda: ["/bin/sh", "-c", "echo no python >&2; exit 9"])
    with pytest.raises(RunnerFailed, match="exited with code 9 before it was ready: no python"):
        async with Jobs(directory, NoSandbox()).prepared():
            pass
