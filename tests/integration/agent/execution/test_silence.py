"""Runners that do not answer: stopped ones, stuck ones, and those whose step keeps their loop busy, as it may."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from textwrap import indent

import pytest

from kici.agent import pulse
from kici.agent.execution import Execution
from tests.integration.agent.execution.conftest import SANDBOXES, SECONDS, Jobs, lock_job
from tests.integration.agent.execution.impostor import Impostor
from tests.integration.agent.execution.test_ends import command

both = pytest.mark.parametrize("jobs", list(SANDBOXES), indirect=True)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("TICK_S", 0.05), ("ASK_S", 0.1), ("SILENT_S", 1.0)):
        monkeypatch.setattr(pulse, name, seconds)


def commands(*texts: str) -> str:
    return f"ci = workflow('ci', jobs=[job('build', runs_on='linux', steps={list(texts)!r})])\n"


def step(body: str, kind: str = "async def", options: str = "") -> str:
    return (
        f"import asyncio, os, time\n@step({options})\n{kind} busy(ctx):\n{indent(body, '    ')}\n"
        "ci = workflow('ci', jobs=[job('build', runs_on='linux', steps=[busy, step('next', 'echo went on')])])\n"
    )


@both
async def test_a_runner_that_a_step_has_stopped_ends_its_job_long_before_the_timeout(jobs: Jobs) -> None:
    ended = await jobs.run_whole(commands("kill -STOP $PPID; sleep 1000", "echo next step"))
    assert (ended.status, ended.reason) == ("failed", "runner")
    assert ended.error.startswith("the runner did not answer for ")
    assert ended.error.endswith("it is stopped (SIGSTOP): the job was killed")
    assert (jobs.sink.ends, jobs.sink.ended[0].error) == (["failed"], ended.error)


@both
async def test_a_runner_that_goes_on_again_in_time_is_left_alone(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "SILENT_S", 30.0)
    ended = await jobs.run_whole(commands("kill -STOP $PPID; sleep 1; kill -CONT $PPID", "echo went on"))
    assert (ended.status, ended.error) == ("success", ""), ended.error
    assert "went on" in jobs.sink.text


@both
@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_a_step_may_keep_its_runner_busy_for_as_long_as_it_may_take(jobs: Jobs, kind: str) -> None:
    ended = await jobs.run_whole(step("end = time.monotonic() + 3\nwhile time.monotonic() < end: pass", kind))
    assert (ended.status, ended.error) == ("success", ""), ended.error
    assert "went on" in jobs.sink.text


async def test_a_step_that_blocks_the_loop_past_its_timeout_is_told_why_it_could_not_be_stopped(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kici.agent.execution.STEP_S", 2.0)
    ended = await jobs.run_whole(step("while True: pass", options="timeout='1s'"))
    assert (ended.status, ended.reason) == ("failed", "timeout")
    assert (
        "step 'busy' did not stop at its timeout of 1 s: the job was killed; the runner did not answer" in ended.error
    )
    assert "the step blocks its event loop (an `async def` that does not await: write `def`, or await)" in ended.error


async def test_a_runner_that_is_stuck_while_no_step_runs_ends_its_job(directory: Path) -> None:
    stuck = "import time; say(StepStarted(0)); say(StepEnded(0, 'success')); time.sleep(1000)"
    jobs = Jobs(directory, Impostor(stuck))
    async with jobs.prepared() as execution, asyncio.timeout(SECONDS):
        start = jobs.start(execution, lock_job("build", ["build", "next"]))
        ended = await execution.run(start, sink=jobs.sink)
    assert (ended.status, ended.reason) == ("failed", "runner")
    assert ended.error == "the runner did not answer for 1 s while no step ran: the job was killed"


async def test_a_log_that_is_taken_slowly_is_not_held_against_the_runner(jobs: Jobs) -> None:
    async def slow() -> None:
        await asyncio.sleep(0.5)

    jobs.sink.slow = slow
    ended = await jobs.run_whole(commands("head -c 600000 /dev/zero | tr '\\0' 'a'", "echo next step"))
    assert (ended.status, ended.error) == ("success", ""), ended.error


@both
async def test_a_question_to_a_runner_that_stands_ready_may_be_on_its_way_when_its_job_comes(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kici.agent.execution.STANDBY_ASK_S", 0.0)
    source, step = command("echo done")
    jobs.write(source)
    for turns in range(6):
        async with jobs.prepared() as execution, asyncio.timeout(SECONDS):
            await asked(execution, turns)
            ended = await execution.run(jobs.start(execution, lock_job("build", [step])), sink=jobs.sink)
            assert (ended.status, ended.error) == ("success", ""), ended.error


async def asked(execution: Execution, turns: int) -> None:
    """Once it has been asked, and so many turns of the loop later: nobody looks any more."""
    looking = asyncio.create_task(execution.lost())
    while not execution._linked.waits_longer_than(-1):
        await asyncio.sleep(0)
    for _ in range(turns):
        await asyncio.sleep(0)
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)


@both
async def test_a_stopped_runner_that_stands_ready_is_given_up_and_gets_no_job(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kici.agent.execution.STANDBY_ASK_S", 0.05)
    monkeypatch.setattr("kici.agent.execution.STANDBY_SILENT_S", 0.3)
    async with jobs.prepared() as execution, asyncio.timeout(SECONDS):
        assert not execution.is_silent
        assert execution._box
        runner = pulse.host_pid(execution._box.pid, execution._ready)
        assert runner
        os.kill(runner, signal.SIGSTOP)
        while not execution.is_silent:
            await asyncio.sleep(0.01)
        assert await execution.lost() == "the runner did not answer for 0.3 s while it stood ready (it is stopped)"
