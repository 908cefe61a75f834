"""What a job's directory may hold: who writes more is killed, by whatever way it writes, and the others go on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection
from pathlib import Path

import pytest

from kici.agent import job_disk
from kici.agent.execution import Execution
from kici.agent.sandbox.contract import BoxSpec
from kici.wire.runner import JobEnded
from tests.integration.agent.execution.conftest import SANDBOXES, SECONDS, Jobs, lock_job
from tests.integration.agent.execution.test_ends import command

MIB = 1024**2
both = pytest.mark.parametrize("jobs", list(SANDBOXES), indirect=True)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_disk, "MEASURE_S", 0.1)


async def run(jobs: Jobs, text: str, limit: int = 8 * MIB) -> JobEnded:
    source, step = command(text)
    jobs.write(source)
    execution = Execution(jobs.sandbox, BoxSpec(0, jobs.root), disk_bytes=limit)
    try:
        async with asyncio.timeout(SECONDS):
            await execution.prepare()
            return await execution.run(jobs.start(execution, lock_job("build", [step])), sink=jobs.sink)
    finally:
        async with asyncio.timeout(SECONDS):
            await execution.close()


WAYS = {
    "one file in the checkout": "head -c 20M /dev/zero >file; sleep 1000",
    "its home": "head -c 20M /dev/zero >~/file; sleep 1000",
    "its temporary directory": "head -c 20M /dev/zero >$TMPDIR/file; sleep 1000",
    "many small files": "for n in $(seq 4000); do echo x >f$n; done; sleep 1000",
    "a tree deeper than a path may be long": (
        "name=$(printf 'd%.0s' $(seq 200)); for n in $(seq 60); do mkdir $name; cd $name; done; "
        "head -c 20M /dev/zero >file; sleep 1000"
    ),
    "a file without a name": "exec 9>gone; rm gone; head -c 20M /dev/zero >&9; sleep 1000",
    "names that nobody reads": "mkdir $'a\\nb\\ttotal'; head -c 20M /dev/zero >$'a\\nb\\ttotal/x'; sleep 1000",
}


@both
@pytest.mark.parametrize("way", WAYS)
async def test_a_job_that_writes_more_is_killed_with_a_sentence_whatever_it_writes(jobs: Jobs, way: str) -> None:
    ended = await run(jobs, WAYS[way])
    assert (ended.status, ended.reason) == ("failed", "disk_full")
    assert ended.error.startswith("the job's directory holds ")
    assert "over its limit of 8 MiB (KICI_JOB_DISK, measured every " in ended.error
    assert jobs.sink.ends == ["failed"]


@both
async def test_a_job_that_keeps_to_it_is_left_alone_and_what_it_removed_does_not_count(jobs: Jobs) -> None:
    text = "for n in 1 2 3 4; do head -c 6M /dev/zero >file; sleep 0.3; rm file; done"
    ended = await run(jobs, text)
    assert (ended.status, ended.error) == ("success", "")


@both
async def test_links_that_lead_elsewhere_count_nothing(jobs: Jobs) -> None:
    ended = await run(jobs, "ln -s / root; ln -s /usr usr; ln -s . loop; sleep 1")
    assert (ended.status, ended.error) == ("success", "")


async def test_a_measurement_that_takes_long_is_followed_by_a_longer_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, pauses = [0.0], []

    async def slow(directories: object) -> int:
        now[0] += 4.0
        return 1

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr(job_disk, "_on_disk", slow)
    monkeypatch.setattr("kici.agent.job_disk.time.monotonic", lambda: now[0])
    monkeypatch.setattr("kici.agent.job_disk.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await job_disk.exceeded([tmp_path], 10, lambda: [os.getpid()])
    assert pauses == [36.0, 36.0]


@both
async def test_where_a_measurement_cannot_be_made_the_next_one_is(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    real, tries = job_disk._on_disk, []

    async def at_first_not(directories: Collection[Path]) -> int:
        tries.append(directories)
        if len(tries) < 3:
            raise BlockingIOError("no process is left")
        return await real(directories)

    monkeypatch.setattr(job_disk, "_on_disk", at_first_not)
    ended = await run(jobs, "head -c 20M /dev/zero >file; sleep 1000")
    assert (ended.status, ended.reason, len(tries) >= 3) == ("failed", "disk_full", True)
