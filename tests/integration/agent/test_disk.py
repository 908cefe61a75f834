"""A work directory that is full, on a real small file system."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from kici.agent.disk import Disk
from kici.engine.events import Event, EventType
from kici.engine.failure import Reason
from kici.wire.agent import Checkout, Dispatch, JobRejected, StepStatusChanged
from kici.wire.context import JobContext
from tests.support import agent_process
from tests.support.agent_orchestrator import Orchestrator
from tests.support.kici_repository import KiciRepository
from tests.support.package_index import PackageIndex
from tests.support.services import running
from tests.support.web import Web

MiB = 1024**2
JOB, SECOND = "0f0f0f0f-0000-0000-0000-000000000001", "0f0f0f0f-0000-0000-0000-000000000002"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")


@pytest.fixture
def small(base: Path) -> Iterator[Path]:
    """32 MiB and 2,000 inodes."""
    place = base / "work"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m,nr_inodes=2000,mode=711", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def disk(place: Path, **more: object) -> Disk:
    given: dict[str, object] = {"min_free_bytes": 8 * MiB, "min_free_inodes": 500, "look_s": 0.02} | more
    return Disk(place, **given)  # type: ignore[arg-type]


class Cache:
    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.asked: list[int] = []

    def evict(self, wanted_bytes: int) -> int:
        self.asked.append(wanted_bytes)
        if not self.files:
            return 0
        size = self.files[0].stat().st_size
        self.files.pop(0).unlink()
        return size


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


# ── the marks ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_too_few_bytes_are_told_in_words_that_stay_and_the_end_of_it_too(small: Path) -> None:
    changes: list[str] = []
    watched: Disk = disk(small, on_change=lambda: changes.append(watched.problem))
    assert watched.look() == ""
    (small / "big").write_bytes(b"x" * 28 * MiB)
    problem = watched.look()
    assert problem.startswith("disk: ")
    assert f"bytes free, KICI_MIN_FREE_BYTES is {8 * MiB:,} in {small}" in problem
    (small / "more").write_bytes(b"x" * MiB)
    assert watched.look() == problem
    async with running(watched):
        (small / "big").unlink()
        await until(lambda: watched.problem == "")
    assert changes == [problem, ""]


async def test_too_few_inodes_are_told_and_what_cannot_be_removed_is_counted(small: Path) -> None:
    watched = disk(small, left=lambda: {"/a": "busy", "/b": "busy"})
    for number in range(1_700):
        (small / str(number)).touch()
    assert "inodes free, KICI_MIN_FREE_INODES is 500" in watched.look()
    assert watched.problem.endswith("; 2 of jobs' directories could not be removed, see the agent's log")


async def test_caches_are_evicted_one_after_the_other_until_there_is_room(small: Path) -> None:
    files = [small / "old", small / "new"]
    for path in files:
        path.write_bytes(b"x" * 14 * MiB)
    first, second = Cache([files[0]]), Cache([files[1]])
    watched = disk(small, caches=(first, second))
    await watched.run_once()
    assert (len(first.asked), len(second.asked)) == (1, 0)
    assert watched.problem == ""
    assert files[1].exists()


# ── an agent ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def dispatch(web: Web, repository: KiciRepository, job_id: str = JOB) -> Dispatch:
    event = Event(EventType.PUSH, branch="main", sha=repository.sha, repo="me/repo")
    context = JobContext("run", job_id, 1, "ci", "build", "build", event)
    web.contexts[job_id] = msgspec.msgpack.encode(context)
    return Dispatch(
        *("run", job_id, 1, "ci", "build", "build"),
        checkout=Checkout(f"{web.url}/git/repo/.git", repository.sha, repository.sha),
        lock_sha256=repository.lock_sha256,
        job_token="kjt_" + "fedcba9876543210" * 4,
        context=context,
    )


LIMITS = {"KICI_MIN_FREE_BYTES": str(2 * MiB), "KICI_MIN_FREE_INODES": "100"}


async def test_a_full_agent_takes_no_job_says_why_and_takes_jobs_again_when_there_is_room(
    base: Path, small: Path, web: Web, orchestrator: Orchestrator
) -> None:
    repository = KiciRepository(web.repositories / "repo", {"build": ("true",)})
    (small / "big").write_bytes(b"x" * 31 * MiB)
    async with agent_process.running(base, orchestrator.url, LIMITS) as agent:
        await orchestrator.until(
            lambda: orchestrator.heartbeats and orchestrator.heartbeats[-1].not_taking.startswith("disk: "), "a reason"
        )
        await orchestrator.send(dispatch(web, repository))
        assert (await orchestrator.body(JobRejected)).reason == "disk"
        (small / "big").unlink()
        await orchestrator.until(lambda: not orchestrator.heartbeats[-1].not_taking, "room")
        await orchestrator.send(dispatch(web, repository, SECOND))
        assert (await orchestrator.end(SECOND)).status == "success", agent.log()


@pytest.mark.parametrize("what", ["fetch", "working tree", "packages"])
async def test_a_disk_that_is_full_before_user_code_is_the_machines_fault(
    base: Path, small: Path, web: Web, orchestrator: Orchestrator, what: str
) -> None:
    repository = KiciRepository(web.repositories / "repo", {"build": ("true",)})
    with PackageIndex().running() as index:
        noise = os.urandom((20 if what == "working tree" else 40) * MiB)
        if what != "packages":
            (repository.root / "big").write_bytes(noise)
        else:
            index.add("big", "1.0", {"big/data": noise})
            repository.write(index.project("big"))
            repository.lock({"build": ("true",)})
        repository.commit()
        async with agent_process.running(base, orchestrator.url, LIMITS) as agent:
            await orchestrator.send(dispatch(web, repository))
            end = await orchestrator.end(JOB)
            assert (end.status, end.reason, end.failed_before_user_code) == ("failed", Reason.DISK_FULL, True), (
                agent.log()
            )
            assert end.error.startswith("disk: no space left")
            # What it has left is gone, and the agent goes on.
            await orchestrator.until(lambda: not orchestrator.heartbeats[-1].not_taking, "room")
            await until(lambda: os.statvfs(small).f_bavail * os.statvfs(small).f_frsize > 25 * MiB)


async def test_a_step_that_fills_the_disk_fails_with_a_sentence_that_says_so(
    base: Path, small: Path, web: Web, orchestrator: Orchestrator
) -> None:
    repository = KiciRepository(web.repositories / "repo", {"build": ("head -c 64M /dev/zero > big",)})
    async with agent_process.running(base, orchestrator.url, LIMITS):
        await orchestrator.send(dispatch(web, repository))
        end = await orchestrator.end(JOB)
        assert (end.status, end.failed_before_user_code) == ("failed", False)
        step = await orchestrator.body(StepStatusChanged, step_index=0, status="failed")
        assert step.reason == Reason.DISK_FULL
        assert "no space is left on the disk" in step.error
