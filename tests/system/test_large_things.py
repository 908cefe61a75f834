"""What is truly large goes through the whole system in little memory: `make proofs`."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from kici.agent import trash
from kici.runner.processes import descendants
from tests.support import stack
from tests.support.postgres import memory, reachable_folder
from tests.support.stack import Stack, command_line
from tests.system.test_outages import agent

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]

MB = 1024 * 1024
FILE_BYTES = 5 * 1024**3
ORCHESTRATOR, AGENT, RUNNER, REMOVER = "kici.orchestrator.main", "kici.agent.main", "kici.runner", "remove_tree.py"
BOUNDS = {ORCHESTRATOR: 250 * MB, AGENT: 200 * MB, RUNNER: 100 * MB, REMOVER: 100 * MB}
"""What a process of each may have at most: about what it has by itself, and a few parts of 8 MiB. `zstd` beside them
has memory for each core."""

TRANSFERS = f"""
import hashlib
import os

from kici import Ctx, job, push, workflow

MB = 1024 * 1024
FILE_BYTES = {FILE_BYTES}


def peak() -> str:
    # Of this process, which is the runner: it ends with its job.
    with open("/proc/self/status") as status:
        return next(str(int(line.split()[1]) * 1024) for line in status if line.startswith("VmHWM:"))


@job(runs_on="linux", timeout="9m")
async def make(ctx: Ctx) -> dict[str, str]:
    digest = hashlib.sha256()
    with open("image", "wb") as image:
        for _ in range(FILE_BYTES // MB):
            block = os.urandom(MB // 16) * 16
            digest.update(block)
            image.write(block)
    if os.stat("image").st_blocks * 512 < FILE_BYTES:
        raise RuntimeError("the file has holes")
    await ctx.artifacts.upload("image", "image")
    return {{"sha256": digest.hexdigest(), "peak": peak()}}


@job(runs_on="linux", timeout="9m", needs=[make])
async def take(ctx: Ctx) -> dict[str, str]:
    await ctx.artifacts.download("image", into="got")
    digest = hashlib.sha256()
    with open("got/image", "rb") as image:
        while piece := image.read(MB):
            digest.update(piece)
    return {{"sha256": digest.hexdigest(), "peak": peak()}}


@job(runs_on="linux")
async def punch(ctx: Ctx) -> None:
    async with ctx.cache("disk", "disk"):
        with open("disk", "wb") as disk:
            disk.truncate(FILE_BYTES)
            disk.seek(FILE_BYTES - MB)
            disk.write(b"data")


@job(runs_on="linux", needs=[punch])
async def find(ctx: Ctx) -> dict[str, int | str]:
    async with ctx.cache("disk", "disk") as found:
        status = os.stat("disk")
        with open("disk", "rb") as disk:
            disk.seek(FILE_BYTES - MB)
            data = disk.read(5).hex()
    return {{"key": found.matched_key, "bytes": status.st_size, "on_disk": status.st_blocks * 512, "data": data}}


artifacts = workflow("artifacts", on=push(branches="main"), jobs=[make, take])
caches = workflow("caches", on=push(branches="holes"), jobs=[punch, find])
"""


class Peaks:
    """Of each program the most memory that one of its processes has had."""

    def __init__(self) -> None:
        self.bytes: defaultdict[str, int] = defaultdict(int)

    def look(self, pid: int) -> None:
        """The kernel knows it of each until it ends."""
        for one in (pid, *descendants(pid)):
            line = command_line(one)
            for program in BOUNDS:
                if program in line:
                    self.bytes[program] = max(self.bytes[program], _peak_bytes(one))

    def check(self, *programs: str) -> None:
        """All were seen, and none was over its bound."""
        print({program: f"{self.bytes[program] // MB} MiB" for program in programs})
        assert [program for program in programs if not 0 < self.bytes[program] < BOUNDS[program]] == []


def _peak_bytes(pid: int) -> int:
    """0: it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")), 0)


def need_room(needed: int) -> None:
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < needed:
        pytest.skip(f"{needed:,} bytes of free room are needed in {tempfile.gettempdir()}, there are {free:,}")


async def ended(up: Stack, root: Path, ref: str, deadline: float) -> tuple[str, dict[str, dict[str, Any]]]:
    """The run of that ref and its jobs, all of which have gone well."""
    await up.commit(root, ref)  # or the run of an earlier push of the same commit would be found
    run_id = (await up.run_of(await up.push(root, ref)))["runId"]
    run = await up.ended(run_id, deadline)
    jobs = await up.jobs(run_id)
    assert run["status"] == "success", f"{run} {jobs}\n{up.logs()}"
    return run_id, jobs


async def test_an_artifact_of_a_5_gb_file_goes_from_job_to_job_in_little_memory() -> None:
    """It becomes some 340 MB on its way. Parts have 8 MiB, of which an agent holds three, and the orchestrator two."""
    need_room(3 * FILE_BYTES)
    peaks = Peaks()
    async with stack.running() as up:
        assert up.process
        root = await up.repository(TRANSFERS)
        run_id, jobs = await ended(up, root, "main", 500)
        peaks.look(up.process.pid)
        assert jobs["make"]["outputs"]["make"]["sha256"] == jobs["take"]["outputs"]["take"]["sha256"]
        (stored,) = (await up.get(f"/runs/{run_id}/artifacts"))["artifacts"]
    print({name: f"{job['durationMs'] / 1000:.0f} s" for name, job in jobs.items()}, f"{stored['sizeBytes']:,} bytes")
    assert 300_000_000 < stored["sizeBytes"] < 500_000_000
    peaks.bytes[RUNNER] = max(int(jobs[name]["outputs"][name]["peak"]) for name in ("make", "take"))
    peaks.check(ORCHESTRATOR, AGENT, RUNNER)


async def test_a_sparse_file_of_5_gb_is_sparse_after_a_cache_was_saved_and_restored() -> None:
    async with stack.running() as up:
        root = await up.repository(TRANSFERS)
        _, jobs = await ended(up, root, "holes", 120)
    found = jobs["find"]["outputs"]["find"]
    assert (found["key"], found["bytes"], found["data"]) == ("disk", FILE_BYTES, b"data\0".hex())
    assert found["on_disk"] < MB


MANY = """
import asyncio
import os
import sys

from kici import Ctx, job, push, workflow

MAKE = '''
import os, sys
first, last = map(int, sys.argv[1:])
for number in range(first, last):
    folder = "flat" if number % 2 else f"deep/{number // 1000 % 10}/{number // 1000}"
    if not number % 1000:
        os.makedirs(folder)
    os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_WRONLY))
'''


@job(runs_on="linux")
async def fill(ctx: Ctx) -> None:
    os.mkdir("flat")
    halves = [("0", "500000"), ("500000", "1000000")]
    makers = [await asyncio.create_subprocess_exec(sys.executable, "-c", MAKE, *half) for half in halves]
    if any([await maker.wait() for maker in makers]):
        raise RuntimeError("the files could not be made")


many = workflow("many", on=push(branches="main"), jobs=[fill])
few = workflow("few", on=push(branches="few/*"), jobs=[job("few", runs_on="linux", steps=["true"])])
"""


async def test_an_agent_serves_while_the_million_files_of_a_job_are_removed() -> None:
    """They lie in memory, where they are made in seconds. The removal is stopped for a while: nobody waits for it."""
    shm = memory()
    if shm is None or os.statvfs(shm).f_favail < 1_100_000:
        pytest.skip("a million files need room in memory: /dev/shm is too small")
    peaks = Peaks()
    with reachable_folder(shm) as work:
        async with stack.running("--no-agent") as up:
            root = await up.repository(MANY)
            url = f"{up.url.replace('http', 'ws')}/ws"
            async with agent(up, url, KICI_WORK_DIR=str(work)) as process:
                await ended(up, root, "main", 120)
                remover = await up.until(lambda: remover_of(process.pid), "the removal of the files", 30)
                os.kill(remover, signal.SIGSTOP)
                left = sum(len(names) for _, _, names in os.walk(work / trash.NAME))
                await ended(up, root, "few/one", 60)
                os.kill(remover, signal.SIGCONT)
                _, jobs = await ended(up, root, "few/two", 60)
                assert jobs.keys() == {"few"}

                async def is_empty() -> bool | None:
                    peaks.look(process.pid)
                    return not os.listdir(work / trash.NAME) or None

                await up.until(is_empty, "the end of the removal", 240)
                log = (up.base / "agent.log").read_text()
    print(f"{left:,} files were left when it was stopped")
    assert left > 0
    assert "could not remove" not in log
    peaks.check(AGENT, REMOVER)


async def remover_of(pid: int) -> int | None:
    return next((one for one in descendants(pid) if REMOVER in command_line(one)), None)
