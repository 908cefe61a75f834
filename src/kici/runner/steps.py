"""One step of the author's: its rules, caches, attempts and hooks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kici.engine import templates
from kici.engine.errors import TemplateError
from kici.engine.failure import Reason
from kici.engine.lockfile import LockStep, Retry
from kici.runner import rules
from kici.runner.acts import Acts, Ended, How, What
from kici.runner.caches import Caches
from kici.runner.context import template_fields
from kici.runner.telling import sentence
from kici.sdk.facts import Outcome
from kici.sdk.hooks import Hook
from kici.sdk.steps import Step
from kici.wire.runner import StepEnded, StepStarted, Summarized

_ERROR_CHARS = 4_000


class Told(Struct, frozen=True):
    """How a step ended, as its job sees it."""

    status: str
    error: str = ""
    stuck: bool = False


class StepRunner:
    """Runs steps of one job. With an `Acts` of its own for each of several that run at the same time."""

    def __init__(self, acts: Acts, caches: Caches, around: Mapping[str, Hook], begun: set[int]) -> None:
        self._acts = acts
        self.caches = caches
        self._around = around
        self._begun = begun
        """Steps whose start has been told already: the first one begins with the import of the module."""

    def beside(self, acts: Acts) -> StepRunner:
        return StepRunner(acts, self.caches.beside(acts), self._around, self._begun)

    # ── for every kind ───────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self, index: int, attempt: int = 1) -> None:
        if attempt > 1 or index not in self._begun:
            self._begun.add(index)
            await self._acts.link.post(StepStarted(index, attempt))
        # Not before: what others write meanwhile must not come as output of a step that has not begun.
        self._acts.capture.begin(index)

    async def end(self, index: int, ended: Ended, *, attempt: int = 1, final: bool = True) -> Told:
        if index in self._begun:
            await self._acts.capture.end(index)
        error = ended.error[:_ERROR_CHARS]
        failed = ended.status in ("failed", "cancelled")
        await self._acts.link.post(
            StepEnded(
                index,
                ended.status,
                ended.exit_code,
                error,
                attempt,
                final,
                reason=ended.reason if failed else "",
                signal=ended.signal if failed else "",
                last_lines=ended.last_lines if failed else "",
            )
        )
        return Told(ended.status, error, ended.stuck)

    async def skip(self, index: int, why: str = "", status: str = "skipped") -> Told:
        """It does not run; its start need not have been told."""
        if why and index in self._begun:
            self._acts.say(index, why)
        return await self.end(index, Ended(status, why, reason=Reason.CANCELLED))

    async def act(
        self, index: int, locked: LockStep, what: What, outcome: Outcome, *, until: float | None = None
    ) -> Told:
        """An init command, or a hook at the end of the job."""
        await self.start(index)
        ended = self._expanded(locked, outcome, until)
        if isinstance(ended, How):
            await self.caches.restore(index, locked.caches)
            ended = await self._acts.perform(index, what, ended)
            if ended.status == "success":
                await self.caches.save(index, locked.caches)
        await self._summarize(index, ended)
        code = 0 if ended.status == "success" and what.command is not None else ended.exit_code
        return await self.end(index, replace(ended, exit_code=code))

    # ── steps of the author's ────────────────────────────────────────────────────────────────────────────────────────

    async def run(self, index: int, step: Step[Any], locked: LockStep) -> Told:
        """All attempts. The host has been told of the end when this returns."""
        state = self._acts.state
        if step.rules and (no := await self._refusal(index, step, locked)):
            return await self.skip(index, no)
        await self.start(index)
        how = self._expanded(locked, Outcome("running"), None)
        if isinstance(how, Ended):
            return await self.end(index, how)
        await self._hook(index, "before_step", how)
        await self.caches.restore(index, locked.caches)
        retry = locked.retry or Retry(attempts=1)
        attempt, ended = 1, self._cancelled()
        while not (state.cancelled and attempt == 1):
            done = await self._acts.perform(index, What(step.fn, step.command), how)
            await self._summarize(index, done)
            ended = self._kept(index, step, done)
            if attempt == retry.attempts or not self._wants_another(index, step, ended):
                break
            await self.end(index, ended, attempt=attempt, final=False)
            attempt += 1
            cancelled = await self._pause(retry, attempt - 1)
            await self.start(index, attempt)
            if cancelled:
                # While it waited: the step's last word is that.
                ended = self._cancelled()
                break
        ended = await self._tidied(index, step, how, ended)
        if ended.status == "success":
            await self.caches.save(index, locked.caches)
        await self._hook(index, "after_step", how)
        return await self.end(index, ended, attempt=attempt)

    async def _refusal(self, index: int, step: Step[Any], locked: LockStep) -> str:
        if any(rule.fn is not None for rule in step.rules):
            await self.start(index)  # what the functions print has a place
        return await rules.refusal(self._acts, index, step.rules, locked.rules, self._acts.state.facts.event)

    def _expanded(self, locked: LockStep, outcome: Outcome, until: float | None) -> How | Ended:
        facts = self._acts.state.facts
        values = template_fields(facts)
        try:
            env = {name: templates.expand(text, values) for name, text in locked.env.items()}
        except TemplateError as error:
            return Ended("failed", str(error))
        below = locked.working_directory
        root = self._acts.state.root
        directory = os.path.join(root, below) if below else root
        return How(locked.timeout_ms, env, directory, locked.shell, outcome, until)

    async def _tidied(self, index: int, step: Step[Any], how: How, ended: Ended) -> Ended:
        """The step's own hooks: `on_cancel` if it was cancelled, `cleanup` always."""
        state = self._acts.state
        for name in ("on_cancel", "cleanup"):
            hook = step.hooks.get(name)
            if hook is None or (name == "on_cancel" and ended.status != "cancelled"):
                continue
            until = state.cancelled.deadline if state.cancelled else None
            outcome = Outcome(ended.status, ended.error)
            done = await self._acts.perform(
                index, What(hook.fn, hook.command), _for_hook(how, hook, outcome, name, until)
            )
            if done.status == "success":
                continue
            said = f"{name} failed: {done.error}"
            if ended.status == "success":
                ended = replace(done, status="failed", error=said, exit_code=None)
            else:
                ended = replace(ended, error=f"{ended.error} ({said})")
        return ended

    def _cancelled(self) -> Ended:
        cancelled = self._acts.state.cancelled
        return Ended("cancelled", cancelled.reason, reason=Reason.TIMEOUT if cancelled.failed else Reason.CANCELLED)

    async def _hook(self, index: int, name: str, how: How) -> None:
        """`before_step`, `after_step`: what they raise is told, no more."""
        hook = self._around.get(name)
        if hook is None or self._acts.state.cancelled:
            return
        done = await self._acts.perform(
            index, What(hook.fn, hook.command), _for_hook(how, hook, Outcome("running"), name, None)
        )
        if done.status != "success":
            self._acts.say(index, f"{name} failed: {done.error}; the step goes on")

    def _kept(self, index: int, step: Step[Any], ended: Ended) -> Ended:
        """With what it returned among the job's outputs."""
        if ended.status != "success":
            return ended
        try:
            self._acts.state.results.keep(step, ended.value, ended.written.outputs)
        except Exception as error:  # noqa: BLE001 - a returned object may raise anything when it is read
            return Ended("failed", sentence(error), exception=error)
        return Ended("success", exit_code=0 if step.command is not None else None)

    async def _summarize(self, index: int, ended: Ended) -> None:
        if ended.written.summary:
            await self._acts.link.post(Summarized(index, ended.written.summary))

    def _wants_another(self, index: int, step: Step[Any], ended: Ended) -> bool:
        if ended.status != "failed" or ended.stuck or self._acts.state.cancelled:
            return False
        when = step.retry.when if step.retry else None
        if when is None:
            return True
        try:
            return bool(when(ended.exception or TimeoutError(ended.error)))
        except Exception as error:  # noqa: BLE001 - it is the author's code
            self._acts.say(index, f"retry's when failed: {sentence(error)}; the step is not tried again")
            return False

    async def _pause(self, retry: Retry, attempt: int) -> bool:
        """True if the job was cancelled meanwhile."""
        doubled = 2 ** (attempt - 1) if retry.backoff == "exponential" else 1
        delay_ms = min(retry.delay_ms * doubled, retry.max_delay_ms)
        try:
            async with asyncio.timeout(delay_ms / 1000):
                await self._acts.state.cancelled
        except TimeoutError:
            return False
        return True


def _for_hook(how: How, hook: Hook, outcome: Outcome, name: str, until: float | None) -> How:
    return How(hook.timeout_ms, how.env, how.directory, how.shell, outcome, until, f"its {name}")
