"""What a box tells of its end beside the runner: memory, processes, disk."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from kici.agent.post_mortem import PostMortem
from kici.agent.sandbox.contract import Limits, Usage
from kici.engine.failure import Reason
from kici.engine.lockfile import LockJob, LockStep
from kici.wire.runner import JobEnded, StepEnded

MIB = 1024**2
JOB = LockJob("build", (LockStep("first"), LockStep("second")), ("linux",))
EXIT = StepEnded(0, "failed", 1, "make failed: exit code 1", reason=Reason.EXIT_CODE)


class Reporting:
    """A box that reports what a test wants it to have used."""

    pid = 1

    def __init__(self) -> None:
        self.used = Usage()

    def lower(self, limits: Limits) -> Limits:
        raise AssertionError

    def usage(self) -> Usage:
        return self.used

    async def wait(self) -> int:
        raise AssertionError

    async def kill(self) -> None:
        raise AssertionError

    def path(self, host: Path) -> str:
        raise AssertionError

    def last_words(self) -> str:
        raise AssertionError


@pytest.fixture
def box() -> Reporting:
    return Reporting()


@pytest.fixture
def mortem(box: Reporting, tmp_path: Path) -> PostMortem:
    limits = Limits(memory_bytes=512 * MIB, pids=100)
    return PostMortem(JOB, box, limits, tmp_path, lambda text: text.replace("hunter2", "***"))


def test_a_kill_for_memory_is_named_with_limit_and_peak_on_the_step_and_the_job(
    mortem: PostMortem, box: Reporting
) -> None:
    box.used = Usage(peak_memory_bytes=511 * MIB, out_of_memory_kills=1)
    killed = StepEnded(0, "failed", 137, "make failed: exit code 137", reason=Reason.EXIT_CODE, signal="SIGKILL")
    step = mortem.of_step(killed)
    assert (step.reason, step.exit_code, step.signal, step.peak_memory_bytes) == (
        "out_of_memory", 137, "SIGKILL", 511 * MIB,
    )  # fmt: skip
    assert step.error == (
        "make failed: exit code 137 (128 + 9: SIGKILL); the job ran out of memory and a process was killed "
        "(limit 512 MiB, peak 511 MiB)"
    )
    said = "step 'first' failed: make failed: exit code 137 (cleanup hook failed: x)"
    job = mortem.of_job(JobEnded("failed", said, failed_step=0))
    assert job.error == f"step 'first' failed: {step.error} (cleanup hook failed: x)"
    assert (job.reason, job.exit_code, job.signal, job.peak_memory_bytes) == (
        "out_of_memory", 137, "SIGKILL", 511 * MIB,
    )  # fmt: skip


def test_a_kill_counts_for_the_step_in_which_it_happened_alone(mortem: PostMortem, box: Reporting) -> None:
    box.used = Usage(out_of_memory_kills=1)
    assert mortem.of_step(StepEnded(0, "success", 0)).reason == ""
    later = mortem.of_step(msgspec.structs.replace(EXIT, index=1))
    assert (later.reason, later.error) == ("exit_code", "make failed: exit code 1")


def test_a_runner_that_was_killed_for_memory_says_so(mortem: PostMortem, box: Reporting) -> None:
    box.used = Usage(peak_memory_bytes=600 * MIB, out_of_memory_kills=1)
    ended = mortem.of_runner(-9)
    assert (ended.reason, ended.signal) == ("out_of_memory", "SIGKILL")
    assert ended.error == (
        "the runner was killed by SIGKILL before the job ended; the job ran out of memory and a process was killed "
        "(limit 512 MiB, peak 600 MiB)"
    )


def test_too_many_processes_are_named_with_their_limit(mortem: PostMortem, box: Reporting) -> None:
    box.used = Usage(refused_processes=12)
    assert mortem.of_step(EXIT).error == "make failed: exit code 1; it reached its limit of 100 processes"


def test_a_full_disk_is_named(mortem: PostMortem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((4096, 4096, 1000, 10, 9, 100, 50, 50, 0, 255)))
    step = mortem.of_step(EXIT)
    assert (step.reason, step.error) == (
        "disk_full",
        "make failed: exit code 1; no space is left on the disk of the job's directory",
    )


def test_last_lines_are_masked_before_they_are_cut(mortem: PostMortem) -> None:
    lines = "\x1b[1m" + "x" * 154 + "hunter2\n" + "y" * 298 + "hunter2"
    step = mortem.of_step(msgspec.structs.replace(EXIT, last_lines=lines))
    assert "hunter2"[:2] not in step.last_lines + step.error
    assert step.last_lines.splitlines()[0] == "x" * 154 + "***"


def test_what_a_hostile_runner_says_of_itself_is_bounded(mortem: PostMortem) -> None:
    step = mortem.of_step(
        StepEnded(0, "failed", 2**60, "e" * 50_000, reason="made up", signal="SIG\n" * 50, last_lines="l" * 2**20)
    )
    assert (step.reason, step.exit_code, step.signal) == ("error", None, "")
    assert len(step.error) <= 8_000
    assert len(step.last_lines) <= 300
    job = mortem.of_job(JobEnded("failed", "why", failed_step=77))
    assert (job.error, job.reason, job.exit_code) == ("why", "error", None)


def test_a_cancellation_is_told_as_such_whatever_else_happened(mortem: PostMortem, box: Reporting) -> None:
    box.used = Usage(peak_memory_bytes=5, out_of_memory_kills=1)
    step = mortem.of_step(StepEnded(0, "cancelled", None, "cancelled by ann", reason=Reason.CANCELLED))
    assert (step.reason, step.error) == ("cancelled", "cancelled by ann")
    assert mortem.of_job(JobEnded("cancelled", "cancelled by ann", reason=Reason.CANCELLED)).reason == "cancelled"
