"""One job: its entries in order, from the host's `Start` to our `JobEnded`.

Every entry of the job is told to have ended, in the order of the lock file; what does not apply ends as skipped.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from kici.engine import failure
from kici.engine.lockfile import HOOKS, LockJob, LockParallel, LockRule, LockStep, StepKind
from kici.runner import evaluate, generated, rules
from kici.runner.acts import Acts, Ended, What
from kici.runner.caches import Caches
from kici.runner.capture import Capture
from kici.runner.context import Cancelled, JobState
from kici.runner.environment import Environment
from kici.runner.link import Link
from kici.runner.parallel import run_group
from kici.runner.steps import StepRunner, Told
from kici.runner.transfers import Transfers
from kici.runner.workflow import Found
from kici.sdk.facts import Outcome
from kici.sdk.steps import Step
from kici.wire.runner import Cancel, JobEnded, Ping, Pipe, Pong, Reply, Start

_STEPS_SHARE = 0.5
"""Of the grace period, for the step that runs, if hooks are to run after it."""


_AUTHORS = (StepKind.STEP, StepKind.EVALUATE)
"""Entries that are steps of the definition, in their order."""


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
        tell=link.send,
    )
    acts = Acts(state, link, capture, start.kici_dir, start.tmp)
    work = asyncio.create_task(_work(start, found, acts))
    listening = asyncio.create_task(_listen(link, cancelled, transfers, start.job))
    await asyncio.wait((work, listening), return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        listening.result()
        raise HostGone
    return work.result()


async def _work(start: Start, found: Found, acts: Acts) -> JobEnded:
    if start.context.generated_by:
        made = await generated.made_again(found.workflow, start, acts)
        if isinstance(made, Ended):
            return await _not_made(made, start, acts)
        found = made
        acts.state.results = evaluate.results(found.workflow, found.job, start)
    return await _Sequence(found, start.job, acts).run()


async def _not_made(ended: Ended, start: Start, acts: Acts) -> JobEnded:
    """The generator has not made the job again: how the job ends, of which the first step has begun."""
    dropped = isinstance(ended.exception, generated.Dropped)
    steps = StepRunner(acts, Caches(acts), {}, begun={0})
    await steps.end(0, replace(ended, status="skipped") if dropped else ended)
    for index in range(1, len(start.job.steps)):
        await steps.skip(index)
    return JobEnded("drift_dropped" if dropped else ended.status, ended.error, failed_step=0)


class _Sequence:
    """What runs of the job, and in which order."""

    def __init__(self, found: Found, job: LockJob, acts: Acts) -> None:
        self._found = found
        self._job = job
        self._acts = acts
        self._steps = StepRunner(acts, Caches(acts), found.job.hooks, begun={0})
        self._authors = _authors_steps(job, found.job.steps)
        self._began = time.monotonic()
        self._failed_step = ""
        self._failed_index: int | None = None
        self._error = ""
        """Why the job fails; empty while it does not."""
        self._broken_hook = ""
        """Of a job that was cancelled: which hook failed, and why."""

    async def run(self) -> JobEnded:
        state = self._acts.state
        if no := await self._refusal():
            for index in range(len(self._job.steps)):
                await self._steps.skip(index, no if index == 0 else "")
            return JobEnded("skipped", no)
        for unit in _units(self._job):
            if isinstance(unit, LockParallel):
                await self._group(unit)
            else:
                await self._entry(unit)
        outputs = state.results.own
        if state.cancelled:
            if self._broken_hook:
                return JobEnded("failed", f"{state.cancelled.reason} ({self._broken_hook})", outputs)
            return JobEnded("failed" if state.cancelled.failed else "cancelled", state.cancelled.reason, outputs)
        if self._error:
            return JobEnded("failed", self._error, outputs, self._failed_index)
        return JobEnded("success", outputs=outputs)

    async def _refusal(self) -> str:
        """Why the job need not run, by rules that are functions: the workflow's, then its own."""
        event = self._acts.state.facts.event
        workflow = self._found.workflow.rules
        functions = [rule for rule in (*workflow, *self._found.job.rules) if rule.fn is not None]
        return await rules.refusal(self._acts, 0, functions, [LockRule(rule.label) for rule in functions], event)

    # ── entries ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _entry(self, index: int) -> None:
        locked = self._job.steps[index]
        if locked.kind in HOOKS:
            await self._hook(index, locked)
        elif self._error or self._acts.state.cancelled:
            await self._steps.skip(index)
        elif locked.kind in _AUTHORS:
            self._note(index, await self._steps.run(index, self._authors[index], locked))
        elif locked.kind in (StepKind.CACHE_RESTORE, StepKind.CACHE_SAVE):
            await self._cache(index, locked)
        else:
            self._note(index, await self._steps.act(index, locked, What(None, locked.command), Outcome("running")))

    async def _cache(self, index: int, locked: LockStep) -> None:
        await self._steps.start(index)
        caches = self._steps.caches
        if locked.kind is StepKind.CACHE_RESTORE:
            await caches.restore(index, locked.caches)
        else:
            await caches.save(index, locked.caches)
        await self._steps.end(index, Ended("success"))

    async def _group(self, group: LockParallel) -> None:
        members = range(group.first, group.first + group.size)
        if self._error or self._acts.state.cancelled:
            for index in members:
                await self._steps.skip(index)
            return
        steps = {index: (self._authors[index], self._job.steps[index]) for index in members}
        for index, told in (await run_group(group, steps, self._steps, self._acts)).items():
            self._note(index, told)

    def _note(self, index: int, told: Told) -> None:
        locked = self._job.steps[index]
        if told.status == "failed" and not self._error and (told.stuck or not locked.continue_on_error):
            self._failed_step, self._failed_index = locked.name, index
            self._error = failure.of_step(locked.name, told.error)

    # ── hooks ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _hook(self, index: int, locked: LockStep) -> None:
        outcome = self._outcome()
        if not _applies(locked.kind, outcome.status):
            await self._steps.skip(index)
            return
        cancelled = self._acts.state.cancelled
        hooks = self._found.workflow.hooks if locked.of_workflow else self._found.job.hooks
        hook = hooks[locked.kind]
        until = cancelled.deadline if cancelled else None
        told = await self._steps.act(index, locked, What(hook.fn, hook.command), outcome, until=until)
        if told.status in ("success", "cancelled"):  # the latter together with the job: it is not broken
            return
        said = f"{locked.kind} hook failed: {told.error}"
        if cancelled:
            self._broken_hook = self._broken_hook or said
        elif self._error:
            self._error += f" ({said})"
        else:
            self._error, self._failed_index = said, index

    def _outcome(self) -> Outcome:
        """As the steps have ended: a hook that fails changes nothing of what the others see."""
        cancelled = self._acts.state.cancelled
        took_s = time.monotonic() - self._began
        if cancelled:
            return Outcome("failed" if cancelled.failed else "cancelled", cancelled.reason, "", took_s)
        if self._failed_step:
            return Outcome("failed", self._error, self._failed_step, took_s)
        return Outcome("success", "", "", took_s)


def _applies(kind: StepKind, status: str) -> bool:
    if kind is StepKind.CLEANUP:
        return True
    return kind == {"success": "on_success", "failed": "on_failure", "cancelled": "on_cancel"}[status]


def _units(job: LockJob) -> Iterator[int | LockParallel]:
    """Places of entries, and groups in place of theirs."""
    groups = {group.first: group for group in job.parallel}
    index = 0
    while index < len(job.steps):
        if index in groups:
            yield groups[index]
            index += groups[index].size
        else:
            yield index
            index += 1


def _authors_steps(job: LockJob, steps: Sequence[Step[Any]]) -> Mapping[int, Step[Any]]:
    """By the place of their entries."""
    places = [index for index, one in enumerate(job.steps) if one.kind in _AUTHORS]
    return dict(zip(places, steps, strict=True))


async def _listen(link: Link, cancelled: Cancelled, transfers: Transfers, job: LockJob) -> None:
    """Until the host closes the socket."""
    grace_s = job.grace_period_ms / 1000
    share = _STEPS_SHARE if any(step.kind in HOOKS or step.hooks for step in job.steps) else 1.0
    answers: list[asyncio.Task[None]] = []
    async for message in link.messages():
        if isinstance(message, Ping):
            # Not awaited here: a host that reads slowly must not keep what it says next from us. It asks one by one.
            answers = [asyncio.create_task(link.post(Pong())), *(one for one in answers if not one.done())]
        elif isinstance(message, Cancel):
            cancelled.set(message.reason, failed=message.failed, grace_s=grace_s, for_steps_s=grace_s * share)
        elif isinstance(message, (Reply, Pipe)):
            transfers.answered(message)


def leave_nothing(pid: int = 0) -> None:
    """Kill all that stands below us, without a loop: the host is gone."""
    from kici.runner.processes import descendants, signal_all

    for _ in range(100):
        below = descendants(pid or os.getpid())
        if not below:
            return
        signal_all(below, 9)
