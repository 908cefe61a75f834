from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE
from contextlib import suppress
from typing import Any

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


@pytest.mark.parametrize("steps", range(6))
async def test_a_pipe_that_breaks_just_when_the_block_ends_is_closed_once(steps: int) -> None:
    """The process has ended; another holds its end of the pipe, and is killed so many steps before."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with (
        asyncio.timeout(10),
        started("sh", "-c", "exec 3<&0; sleep 600 & echo $!", stdin=PIPE, stdout=PIPE) as one,
    ):
        assert one.stdin
        assert one.stdout
        holding = int(await one.stdout.readline())
        while one.returncode is None:
            await asyncio.sleep(0)
        os.kill(holding, signal.SIGKILL)
        while not one.stdin.transport.is_closing():
            await asyncio.sleep(0)
        for _ in range(steps):
            await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    assert told == []


async def test_what_nobody_reads_any_more_is_given_up_with_the_block() -> None:
    """The input is closed and still has bytes to write, to a process that has left the group."""
    async with asyncio.timeout(10):
        async with started("sh", "-c", "exec 3<&0; sleep 600 & echo $!", stdin=PIPE, stdout=PIPE) as one:
            assert one.stdin
            assert one.stdout
            holding = int(await one.stdout.readline())
            one.stdin.write(bytes(1_000_000))
            one.stdin.close()
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                await one.stdin.wait_closed()
        finally:
            os.kill(holding, signal.SIGKILL)


async def test_a_program_that_is_missing_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        async with started("/nonexistent/program"):
            pass
