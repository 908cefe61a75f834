"""Steps that run at the same time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from kici.engine.lockfile import LockParallel, LockStep
from kici.runner.acts import Acts
from kici.runner.context import Cancelled
from kici.runner.processes import descendants, end_descendants
from kici.runner.steps import StepRunner, Told
from kici.sdk.steps import Step


async def run_group(
    group: LockParallel, steps: Mapping[int, tuple[Step[Any], LockStep]], runner: StepRunner, acts: Acts
) -> dict[int, Told]:
    """All of them to their ends, started in their order, at most `max_parallel` at once.

    With `fail_fast` the first failure that counts cancels the others. What they set in the environment counts when all
    have ended, in their order.
    """
    state = acts.state
    room = asyncio.Semaphore(group.max_parallel or group.size)
    told: dict[int, Told] = {}
    own = {index: _cancelled_with(state.cancelled) for index in steps}
    branches = {index: state.environment.branch(f"{state.facts.job_id}.{index}") for index in steps}

    async def one(index: int) -> None:
        step, locked = steps[index]
        beside = acts.beside(
            replace(state, environment=branches[index], results=state.results.beside(), cancelled=own[index])
        )
        try:
            if own[index]:
                told[index] = await runner.beside(beside).skip(index, own[index].reason, "cancelled")
            else:
                told[index] = await runner.beside(beside).run(index, step, locked)
        finally:
            room.release()
        if group.fail_fast and told[index].status == "failed" and not locked.continue_on_error:
            for other in steps.keys() - told.keys():
                own[other].set(
                    f"step {locked.name!r} failed, and the group {group.name!r} is fail_fast",
                    failed=False,
                    grace_s=state.cancelled.group_grace_s,
                    for_steps_s=state.cancelled.group_grace_s,
                )

    following = asyncio.create_task(_follow(state.cancelled, own))
    try:
        async with asyncio.TaskGroup() as running:
            for index in sorted(steps):
                # One after the other gets room, so that their starts are told in their order.
                await room.acquire()
                running.create_task(one(index))
    finally:
        following.cancel()
        await asyncio.wait((following,))
    # What has shed the mark of its step, and what Python code has started by itself.
    if descendants(os.getpid()):
        await end_descendants(os.getpid(), grace_s=0)
    acts.tidy()
    for index in sorted(branches):
        state.environment.join(branches[index])
    return {index: told[index] for index in sorted(told)}


def _cancelled_with(job: Cancelled) -> Cancelled:
    own = Cancelled()
    own.group_grace_s = job.group_grace_s
    return own


async def _follow(job: Cancelled, own: Mapping[int, Cancelled]) -> None:
    """When the job is cancelled, so are its steps."""
    await job
    for one in own.values():
        one.take(job)
