from __future__ import annotations

import asyncio
import subprocess

import pytest

from kici.agent.process_tree import AdoptingTree
from kici.runner.processes import LINUX, gone, signal_all
from kici.subprocesses import started

ORPHAN = "env -i setsid sleep 1000 >/dev/null 2>&1 & echo $!"


@pytest.mark.skipif(not LINUX, reason="orphans come to us on Linux alone")
async def test_the_last_job_takes_its_orphans_along_and_nothing_that_we_have_started() -> None:
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as before:
        try:
            tree = AdoptingTree()
            env = tree.env() | {"PATH": "/usr/bin:/bin"}
            async with (
                started("sleep", "1000", start_new_session=True) as ours,
                started("sh", "-c", ORPHAN, env=env, stdout=subprocess.PIPE, start_new_session=True) as job,
            ):
                tree.add(job.pid)
                assert job.stdout
                orphan = int(await job.stdout.readline())
                async with asyncio.timeout(20):
                    await tree.kill()
                ended = await gone([orphan], 5)
                signal_all([orphan], 9)
                assert ended
                assert (before.poll(), ours.returncode) == (None, None)
        finally:
            before.kill()
