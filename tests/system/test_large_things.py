"""What is truly large goes through the whole system in little memory: `make proofs`."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kici.runner.processes import descendants
from tests.support import stack
from tests.support.stack import Stack, command_line

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]

MB = 1024 * 1024
FILE_BYTES = 5 * 1024**3
BOUNDS = {"kici.orchestrator.main": 250 * MB, "kici.agent.main": 200 * MB, "kici.runner": 100 * MB}
"""What a process of each may have at most: about what it has by itself, and a few parts of 8 MiB. `zstd` beside them
has memory for each core."""

TRANSFERS = f"""
import hashlib
import os

from kici import Ctx, job, push, workflow

MB = 1024 * 1024
FILE_BYTES = {FILE_BYTES}


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
    return {{"sha256": digest.hexdigest()}}


@job(runs_on="linux", timeout="9m", needs=[make])
async def take(ctx: Ctx) -> dict[str, str]:
    await ctx.artifacts.download("image", into="got")
    digest = hashlib.sha256()
    with open("got/image", "rb") as image:
        while piece := image.read(MB):
            digest.update(piece)
    return {{"sha256": digest.hexdigest()}}


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
        for one in descendants(pid):
            line = command_line(one)
            for program in BOUNDS:
                if program in line:
                    self.bytes[program] = max(self.bytes[program], _peak_bytes(one))

    @contextlib.asynccontextmanager
    async def watched(self, pid: int) -> AsyncIterator[None]:
        """Looks again and again: what a process has had at most is known until it ends."""

        async def look() -> None:
            while True:
                self.look(pid)
                await asyncio.sleep(0.2)

        watching = asyncio.create_task(look())
        try:
            yield
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching


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
        async with peaks.watched(up.process.pid):
            run_id, jobs = await ended(up, root, "main", 500)
        assert jobs["make"]["outputs"]["make"]["sha256"] == jobs["take"]["outputs"]["take"]["sha256"]
        (stored,) = (await up.get(f"/runs/{run_id}/artifacts"))["artifacts"]
    print({name: f"{job['durationMs'] / 1000:.0f} s" for name, job in jobs.items()}, f"{stored['sizeBytes']:,} bytes")
    print({program: f"{peak // MB} MiB" for program, peak in peaks.bytes.items()})
    assert 300_000_000 < stored["sizeBytes"] < 500_000_000
    assert peaks.bytes.keys() == BOUNDS.keys()
    assert {program: peak for program, peak in peaks.bytes.items() if peak > BOUNDS[program]} == {}


async def test_a_sparse_file_of_5_gb_is_sparse_after_a_cache_was_saved_and_restored() -> None:
    async with stack.running() as up:
        root = await up.repository(TRANSFERS)
        _, jobs = await ended(up, root, "holes", 120)
    found = jobs["find"]["outputs"]["find"]
    assert (found["key"], found["bytes"], found["data"]) == ("disk", FILE_BYTES, b"data\0".hex())
    assert found["on_disk"] < MB
