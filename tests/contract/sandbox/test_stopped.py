"""A runner is known on the host, whatever box it is in: so it is seen when it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal

from kici.agent import pulse
from kici.agent.execution import Execution
from kici.agent.sandbox.contract import BoxSpec
from tests.contract.sandbox.conftest import SECONDS, Sandboxes


async def test_a_stopped_runner_is_seen_from_outside_and_one_that_goes_on_again_too(boxes: Sandboxes) -> None:
    execution = Execution(boxes.sandbox, BoxSpec(0, boxes.root()))
    try:
        async with asyncio.timeout(SECONDS):
            await execution.prepare()
            assert execution._box
            runner = pulse.host_pid(execution._box.pid, execution._ready)
            assert runner
            assert not execution.is_silent
            os.kill(runner, signal.SIGSTOP)
            while not execution.is_silent:
                await asyncio.sleep(0.01)
            os.kill(runner, signal.SIGCONT)
            while execution.is_silent:
                await asyncio.sleep(0.01)
            ended = asyncio.create_task(execution._box.wait())
            assert await execution._linked.answers(ended, SECONDS)
            ended.cancel()
    finally:
        async with asyncio.timeout(SECONDS):
            await execution.close()
