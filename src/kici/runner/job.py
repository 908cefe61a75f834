"""One job: its steps in order, from the host's `Start` to our `JobEnded`."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from msgspec.structs import replace

from kici.engine.lockfile import LockStep
from kici.errors import KiciError
from kici.runner import evaluate
from kici.runner.artifacts import Transfers
from kici.runner.capture import Capture
from kici.runner.context import Cancelled, JobState
from kici.runner.environment import Environment
from kici.runner.link import Link
from kici.runner.steps import Outcome, StepRunner
from kici.runner.workflow import Found, sentence, traceback_text
from kici.sdk.steps import Step
from kici.wire.runner import ArtifactData, Cancel, JobEnded, Mask, Reply, Start, StepEnded


class HostGone(Exception):
    """The socket was closed: nobody wants the job any more."""


async def run(start: Start, found: Found, environment: Environment, link: Link, capture: Capture) -> JobEnded:
    """Raises `HostGone`."""
    cancelled, transfers = Cancelled(), Transfers(link)
    state = JobState(
        root=start.root,
        facts=start.context,
        environment=environment,
        results=evaluate.results(found.workflow, found.job, start),
        transfers=transfers,
        cancelled=cancelled,
        mask=lambda value: link.send(Mask(value)),
    )
    work = asyncio.create_task(_work(start, found, state, link, capture))
    listening = asyncio.create_task(_listen(link, cancelled, transfers))
    await asyncio.wait((work, listening), return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        listening.result()
        raise HostGone
    return work.result()


async def _work(start: Start, found: Found, state: JobState, link: Link, capture: Capture) -> JobEnded:
    if start.context.generated_by:
        try:
            workflow, job = await evaluate.made_again(found.workflow, start, state, link, capture)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it is the author's code
            return await _not_made(error, start, state, link, capture)
        found = Found(workflow, job)
        state = replace(state, results=evaluate.results(workflow, job, start))
    runner = StepRunner(state, link, capture, start.kici_dir, start.tmp, start.job.grace_period_ms / 1000)
    return await _steps(runner, state, list(zip(found.job.steps, start.job.steps, strict=True)))


async def _not_made(error: BaseException, start: Start, state: JobState, link: Link, capture: Capture) -> JobEnded:
    """The generator has not made the job again: how the job ends, of which the first step has begun."""
    if state.cancelled:
        status, step, reason = "cancelled", "cancelled", state.cancelled.reason
    elif isinstance(error, evaluate.Dropped):
        status, step, reason = "drift_dropped", "skipped", str(error)
    else:
        status, step = "failed", "failed"
        reason = f"generator {start.context.generated_by!r} failed: {sentence(error)}"
        if not isinstance(error, KiciError):
            capture.say(traceback_text(error, start.kici_dir))
    capture.say(reason)
    await capture.end()
    await link.post(StepEnded(0, step, error=reason))
    return JobEnded(status, reason)


async def _steps(runner: StepRunner, state: JobState, steps: list[tuple[Step[Any], LockStep]]) -> JobEnded:
    for index, (step, locked) in enumerate(steps):
        if state.cancelled:
            break
        outcome = await runner.run(index, step, locked)
        if outcome.status == "cancelled":
            break
        if outcome.status == "failed" and (outcome.stuck or not locked.continue_on_error):
            return _failed(step, outcome, state)
    if state.cancelled:
        return JobEnded("cancelled", state.cancelled.reason, state.results.own)
    return JobEnded("success", outputs=state.results.own)


def _failed(step: Step[Any], outcome: Outcome, state: JobState) -> JobEnded:
    return JobEnded("failed", f"step {step.name!r} failed: {outcome.error}", state.results.own)


async def _listen(link: Link, cancelled: Cancelled, transfers: Transfers) -> None:
    """Until the host closes the socket."""
    async for message in link.messages():
        if isinstance(message, Cancel):
            cancelled.set(message.reason)
        elif isinstance(message, (Reply, ArtifactData)):
            await transfers.answered(message)


def leave_nothing(pid: int = 0) -> None:
    """Kill all that stands below us, without a loop: the host is gone."""
    from kici.runner.processes import descendants, signal_all

    for _ in range(100):
        below = descendants(pid or os.getpid())
        if not below:
            return
        signal_all(below, 9)
