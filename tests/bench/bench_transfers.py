"""Caches and artifacts of a job, from its sandbox to the object store and back, beside bare tools.

A whole `kici up` (coordinator, file system store, agent, sandbox on) runs the jobs of `transfers_workflow`. They take
the figures and, in turn with them, the floors, inside their sandbox and on the file system on which the store is.

- `cache_save_ms`: a tree of 5,000 files of 50 KB is saved. The floor: `tar | zstd -3 -T0` into a file.
- `cache_restore_ms`: that tree is restored where it is not. The floor: `zstd -d | tar` into a fresh directory.
- `artifact_ms`: a file of 250 MB that cannot be compressed, so that what is stored is as large for both, is uploaded.
  The floor: `cp`, which neither packs nor compresses nor hashes.
- `artifact_beside_tar_zstd_ms`: the same value beside `tar | zstd -3 -T0`: what the form in which it is kept costs.

Neither side waits for the disk: the file system store does not, nor do the floors; all is synced before each sample.
`FILES=20000 ARTIFACT_MB=1000` measures with a gigabyte each, which takes four times as long.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from tests.bench.harness import Result, compare
from tests.support import stack
from tests.support.stack import Stack

NAMES = ("cache_save_ms", "cache_restore_ms", "artifact_ms", "artifact_beside_tar_zstd_ms")
SIZES = {"files": int(os.environ.get("FILES", "5000")), "artifact_mb": int(os.environ.get("ARTIFACT_MB", "250"))}
WORKFLOW = Path(__file__).with_name("transfers_workflow.py")
RUN_S = 1_800


def run() -> list[Result]:
    return asyncio.run(measure())


async def measure() -> list[Result]:
    async with stack.running_on_disk(KICI_SANDBOX="true") as up:
        root = await up.repository(WORKFLOW.read_text(), files={"sizes.json": json.dumps(SIZES)})
        started = await up.run_of(await up.push(root))
        ended = await up.ended(started["runId"], RUN_S)
        jobs = await up.jobs(started["runId"])
        if ended["status"] != "success":
            raise RuntimeError(f"the run ended as {ended['status']}: {await told(up, started['runId'], jobs)}")
    cache, artifact = jobs["caches"]["outputs"]["cache"], jobs["artifacts"]["outputs"]["artifact"]
    return [
        compare("cache_save_ms", cache["save"], "tar | zstd", cache["save_floor"], limit=1.3),
        compare("cache_restore_ms", cache["restore"], "zstd -d | tar", cache["restore_floor"], limit=1.3),
        compare("artifact_ms", artifact["artifact"], "cp", artifact["copy"], limit=1.3),
        compare("artifact_beside_tar_zstd_ms", artifact["artifact"], "tar | zstd", artifact["archive"], limit=None),
    ]


async def told(up: Stack, run_id: str, jobs: dict[str, Any]) -> str:
    lines = [line for job in jobs.values() for line in await up.log(run_id, job["jobId"], 0)]
    return "\n".join(lines[-30:])
