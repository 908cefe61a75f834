from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import PIPE

import pytest

from kici.runner.processes import descendants
from kici.subprocesses import started

COMMANDS = ["exit 0", "exec sleep 600", "sleep 600", "head -c 1000000 /dev/zero; sleep 600"]


@pytest.mark.parametrize("command", COMMANDS)
async def test_whenever_it_is_cancelled_it_ends_and_leaves_no_process(command: str) -> None:
    before = set(descendants(os.getpid()))

    async def work() -> None:
        async with started("sh", "-c", command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True) as one:
            await one.wait()

    for steps in range(51):
        working = asyncio.create_task(work())
        for _ in range(steps):
            await asyncio.sleep(0)
        working.cancel()
        ended, _ = await asyncio.wait([working], timeout=10)
        assert ended
        assert working.cancelled() or working.exception() is None
    async with asyncio.timeout(10):
        while set(descendants(os.getpid())) - before:
            await asyncio.sleep(0.01)


async def test_a_program_that_is_missing_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        async with started("/nonexistent/program"):
            pass
