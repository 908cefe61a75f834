"""One job in one box, from the host's side: starts the runner, talks to it, limits it, and says how the job ended.

User code can write to the runner's socket. So nothing that comes from there is believed: sizes, step indexes and the
order of messages are checked, and a runner that breaks the protocol is killed and its job failed. The deadlines run
here, where no busy loop of a step stops them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from kici.agent import job_disk, pulse
from kici.agent.post_mortem import PostMortem
from kici.agent.pulse import Pulse
from kici.agent.runner_link import RunnerLink
from kici.agent.sandbox.contract import Box, BoxSpec, Limits, Sandbox
from kici.agent.step_order import ProtocolBroken, StepOrder
from kici.agent.transfers import Keeper, Transfers
from kici.engine import failure, permissions, timeouts
from kici.engine.failure import Reason
from kici.engine.lockfile import LockJob, LockStep, StepKind
from kici.errors import KiciError
from kici.runner.processes import descendants
from kici.wire.codec import UnreadableMessage
from kici.wire.runner import (
    MAX_SECRET_CHARS,
    Annotated,
    ArtifactBegin,
    ArtifactEnd,
    ArtifactFetch,
    CacheBegin,
    CacheFetch,
    Cancel,
    Emit,
    FromRunner,
    JobEnded,
    Mask,
    Output,
    Pong,
    Ready,
    SecretOutput,
    Start,
    StepEnded,
    StepStarted,
    Summarized,
)

READY_S = 60.0
REPORT_S = 2.0
"""Beyond the grace period, for a runner to tell how a cancelled job ended."""
STEP_S = 15.0
"""Beyond a step's timeout, for a runner to end the step itself."""
CACHE_S = 300.0
"""For a cache to be restored, or saved, within a step."""
RULE_S = 60.0
"""For a rule that is a function to answer, within the step before which it is asked."""
LAST_S = 1.0
"""Without a word from a dead runner's socket: it has said all."""
STANDBY_ASK_S = 15.0
"""Between two questions to a runner that stands ready."""
STANDBY_SILENT_S = 30.0
"""For its answer. Then it is replaced, which costs no job anything."""
HAND_OVER_S = 1.0
"""A question that is older, and not answered yet: no job is handed over."""
MAX_OUTPUT_BYTES = 65_536
_MAX_MASKS = 10_000


class Sink(Keeper, Protocol):
    """Who hears of the job. Awaiting `output` is the back-pressure: the step waits while it does."""

    async def step_started(self, index: int, attempt: int) -> None: ...

    async def step_ended(self, ended: StepEnded) -> None:
        """Also of a step that has not begun: it is skipped, or cancelled. Of one that has begun and did not succeed the
        error is the last line of its log."""

    def hide(self, text: str) -> str:
        """Without the job's secrets."""

    async def output(self, index: int, data: bytes) -> None: ...

    def annotated(self, index: int, level: str, message: str, file: str, line: int) -> None:
        """Not masked yet, and so not cut: that is the sink's."""

    def summarized(self, index: int, markdown: str) -> None:
        """Likewise."""


class RunnerFailed(KiciError):
    """The runner could not be started, died, or broke the protocol. The message says how."""

    code = "runner_failed"
    status = 500


class Execution:
    """`prepare`, then `run` once, and always `close`. `cancel` may come at any time in between."""

    def __init__(self, sandbox: Sandbox, spec: BoxSpec, *, disk_bytes: int | None = None) -> None:
        """`disk_bytes`: what the job's directory may hold; None = no limit."""
        self._sandbox = sandbox
        self._spec = spec
        self._disk_bytes = disk_bytes
        self._limits = spec.limits
        self._box: Box | None = None
        self._link: RunnerLink | None = None
        self._sink: Sink  # until `run` there is nobody, and nothing to tell
        self._transfers: Transfers
        self._job: LockJob | None = None
        self._order: StepOrder | None = None
        self._began = False
        """The runner has been told what to do: what it hears before that it would take for its job."""
        self._pulse = Pulse(
            ask=lambda: self._linked.ask(),
            listens=lambda: self._linked.listens,
            works=lambda: self._order is not None and any(self._order.running()),
            is_stopped=self._is_stopped,
        )
        self._ready = 0
        """What the runner is called in its own PID namespace."""
        self._pid: int | None = None
        """On the host, once it was looked for."""
        self._post_mortem: PostMortem | None = None
        self._masks = 0
        self._verdict: JobEnded | None = None
        """How the job ends whatever the runner says from now on."""
        self._cancelled = ""
        self._forced = False
        self._stopping: asyncio.Event = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None
        self._step_deadlines: dict[int, asyncio.TimerHandle] = {}

    def machine(self) -> Mapping[str, str]:
        """The environment of the place that it runs in."""
        return self._sandbox.machine()

    def path(self, host: Path) -> str:
        """Where a file below `BoxSpec.root` stands inside. After `prepare`."""
        assert self._box
        return self._box.path(host)

    async def prepare(self) -> None:
        """Start the runner and wait until it is ready for its job.

        Raises `SandboxUnavailable`, or `RunnerFailed` with what the runner said last.
        """
        ours, theirs = socket.socketpair()
        self._link = RunnerLink(ours)
        try:
            self._box = await self._sandbox.start(self._spec, theirs.fileno())
        except BaseException:
            await self._link.close()
            raise
        finally:
            theirs.close()
        try:
            async with asyncio.timeout(READY_S):
                ready = await self._link.receive()
        except TimeoutError:
            raise RunnerFailed(f"the runner was not ready within {READY_S:.0f} s. {self._box.last_words()}") from None
        except UnreadableMessage as error:
            raise RunnerFailed(f"the runner did not say that it is ready: {error}") from error
        if not isinstance(ready, Ready):
            await self._box.kill()
            words = self._box.last_words()
            died = failure.of_runner(await self._box.wait(), "before it was ready")
            raise RunnerFailed(f"{died}: {words or 'it says nothing'}")
        self._ready = ready.pid

    def lower(self, limits: Limits) -> Limits:
        """See `Box.lower`. After `prepare`."""
        assert self._box
        self._limits = self._box.lower(limits)
        return self._limits

    async def lost(self) -> str:
        """Wait until the runner has ended, or does not answer any more; how. After `prepare`, before `run`."""
        assert self._box
        self._is_stopped()  # so that its process is known when a job comes
        ended = asyncio.create_task(self._box.wait())
        try:
            while not (await asyncio.wait([ended], timeout=STANDBY_ASK_S))[0]:
                if not await self._linked.answers(ended, STANDBY_SILENT_S):
                    why = " (it is stopped)" if self._is_stopped() else ""
                    return f"the runner did not answer for {STANDBY_SILENT_S:g} s while it stood ready{why}"
            return failure.of_runner(ended.result(), "while it stood ready")
        finally:
            ended.cancel()

    @property
    def is_silent(self) -> bool:
        """The runner, which waits for its job, would not take one now."""
        return self._ready > 0 and (self._linked.waits_longer_than(HAND_OVER_S) or self._is_stopped())

    async def run(self, start: Start, *, sink: Sink, spent_s: float = 0.0) -> JobEnded:
        """Run the job to its end. Whatever happens inside, this returns, and no process of the job is left.

        `spent_s` of the job's timeout are over.
        """
        assert self._box
        if self._cancelled:  # before it began: nothing of it runs
            await self._box.kill()
            return JobEnded("cancelled", self._cancelled, reason=Reason.CANCELLED)
        self._sink, self._transfers = (
            sink,
            Transfers(
                sink, self._linked.send, partial(permissions.refusal, start.context.workflow, start.job.permissions)
            ),
        )
        self._job, self._order = start.job, StepOrder(start.job)
        self._post_mortem = PostMortem(start.job, self._box, self._limits, self._spec.root, self._sink.hide)
        self._post_mortem.watch()
        conversation = asyncio.create_task(self._converse(start))
        stopped = asyncio.create_task(self._stopping.wait())
        died = asyncio.create_task(self._box.wait())
        watches = [asyncio.create_task(self._give_up(self._pulse.lost(), Reason.RUNNER))]
        if self._disk_bytes is not None:
            full = job_disk.exceeded(self._writable(), self._disk_bytes, self._processes)
            watches.append(asyncio.create_task(self._give_up(full, Reason.DISK_FULL)))
        try:
            if start.job.timeout_ms is not None:
                limit_ms = start.job.timeout_ms
                self._deadline = asyncio.get_running_loop().call_later(
                    max(limit_ms / 1000 - spent_s, 0), self._job_timeout, limit_ms
                )
            await asyncio.wait((conversation, stopped, died), return_when=asyncio.FIRST_COMPLETED)
            if conversation.done() and conversation.result() is None and not self._stopping.is_set():
                # Its socket is closed: mostly since it has ended, and then how it did is told.
                await asyncio.wait((died, stopped), timeout=LAST_S, return_when=asyncio.FIRST_COMPLETED)
                if not died.done():
                    self._verdict = self._verdict or JobEnded(
                        "failed", "the runner closed its socket before the job ended", reason=Reason.RUNNER
                    )
            elif died.done():
                await self._hear_out(conversation, stopped)
            told = conversation.result() if conversation.done() else None
        finally:
            for timer in (self._deadline, *self._step_deadlines.values()):
                if timer is not None:
                    timer.cancel()
            for task in (stopped, died, conversation, *watches):
                task.cancel()
            self._post_mortem.stop()
            await self._box.kill()
            with suppress(asyncio.CancelledError):
                await conversation
            await asyncio.wait(watches)
            await self._transfers.close()
        ended = self._verdict or told or self._post_mortem.of_runner(await self._box.wait())
        await self._close_steps(ended)
        return self._post_mortem.of_job(ended)

    async def _hear_out(self, conversation: asyncio.Task[JobEnded | None], stopped: asyncio.Task[bool]) -> None:
        """What a dead runner said last is still in the socket, however slowly it is taken; but a process that it has
        forked may hold the socket open, and say nothing."""
        while not conversation.done() and not stopped.done():
            received = self._linked.received
            await asyncio.wait((conversation, stopped), timeout=LAST_S, return_when=asyncio.FIRST_COMPLETED)
            if self._linked.listens and self._linked.received == received:
                return

    def cancel(self, reason: str, *, force: bool = False) -> None:
        """Ask the job to end: its steps get the grace period, unless `force`. Again with `force`: kill at once."""
        self._forced = self._forced or force
        self._cancelled = self._cancelled or reason or "cancelled"
        if self._began:
            self._begin_cancel(self._cancelled, self._forced)

    async def close(self) -> None:
        """Leave nothing behind. Safe at any time, and again."""
        if self._box is not None:
            await self._box.kill()
        if self._link is not None:
            await self._link.close()

    # ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin_cancel(self, reason: str, force: bool) -> None:
        if self._verdict is None:
            self._verdict = JobEnded("cancelled", reason, reason=Reason.CANCELLED)
            self._ask_to_end(Cancel(reason))
        if force:
            self._stopping.set()

    def _job_timeout(self, limit_ms: int) -> None:
        if self._verdict is None:
            reason = timeouts.of_job(limit_ms)
            self._verdict = JobEnded("failed", reason, reason=Reason.TIMEOUT)
            self._ask_to_end(Cancel(reason, failed=True))

    def _ask_to_end(self, cancel: Cancel) -> None:
        assert self._job
        if self._deadline is not None:
            self._deadline.cancel()
        for timer in self._step_deadlines.values():
            timer.cancel()
        self._linked.write(cancel)
        grace_s = self._job.grace_period_ms / 1000
        self._deadline = asyncio.get_running_loop().call_later(grace_s + REPORT_S, self._stopping.set)

    def _step_timeout(self, name: str, limit_s: float) -> None:
        if self._verdict is None:
            error = f"step {name!r} did not stop at its timeout of {limit_s:g} s: the job was killed"
            if excuse := self._pulse.excuse():
                error += f"; {excuse}"
            self._verdict = JobEnded("failed", error, reason=Reason.TIMEOUT)
        self._stopping.set()

    async def _give_up(self, waiting: Awaitable[str], kind: Reason) -> None:
        """The job is killed when `waiting` returns why."""
        why = await waiting
        if self._verdict is None:
            self._verdict = JobEnded("failed", why, reason=kind)
        self._stopping.set()

    def _writable(self) -> list[Path]:
        return [self._spec.root / name for name in ("src", "tmp", "home")]

    def _processes(self) -> list[int]:
        assert self._box
        return [self._box.pid, *descendants(self._box.pid)]

    def _is_stopped(self) -> bool:
        assert self._box
        if self._pid is None:
            self._pid = pulse.host_pid(self._box.pid, self._ready)
        return self._pid is not None and pulse.is_stopped(self._pid)

    # ── what the runner says ─────────────────────────────────────────────────────────────────────────────────────────

    async def _converse(self, start: Start) -> JobEnded | None:
        """Until the job has ended or the runner is gone (None)."""
        try:
            self._linked.write(start)
            self._began = True
            if self._cancelled:
                self._begin_cancel(self._cancelled, self._forced)
            while True:
                message = await self._linked.receive()
                if message is None:
                    return None
                if isinstance(message, JobEnded):
                    return self._job_ended(message)
                await self._heard(message)
            return None
        except (UnreadableMessage, RunnerFailed, ProtocolBroken) as error:
            return JobEnded("failed", f"the runner broke the protocol: {error}", reason=Reason.RUNNER)
        except OSError:  # the runner is gone while we wrote
            return None

    async def _heard(self, message: FromRunner) -> None:
        match message:
            case Output(index, data):
                self._check(index == -1 or self._runs(index), f"output of step {index}")
                self._check(len(data) <= MAX_OUTPUT_BYTES, f"{len(data):,} bytes of output at once")
                await self._sink.output(index, data)
            case Pong():
                self._check(self._linked.answered(), "an answer that nobody asked for")
                self._pulse.answered()
            case StepStarted(index, attempt):
                await self._step_started(index, attempt)
            case StepEnded():
                await self._step_ended(message)
            case Mask(value):
                self._check(len(value) <= MAX_SECRET_CHARS, f"a value of {len(value):,} characters to mask")
                self._count_mask()
                self._sink.mask(value)
            case Annotated(index, level, text, file, line):
                self._check(self._runs(index), f"a remark of step {index}")
                self._sink.annotated(index, level, text, file, line)
            case Summarized(index, markdown):
                self._check(self._runs(index), f"a summary of step {index}")
                self._sink.summarized(index, markdown)
            case SecretOutput():
                self._count_mask()
                await self._transfers.heard(message)
            case ArtifactBegin() | ArtifactEnd() | ArtifactFetch():
                await self._transfers.heard(message)
            case CacheBegin() | CacheFetch() | Emit():
                await self._transfers.heard(message)
            case _:
                self._check(False, f"{type(message).__name__} now")

    async def _step_started(self, index: int, attempt: int) -> None:
        assert self._job
        assert self._order
        self._order.start(index, attempt)
        if self._verdict is None:
            step = self._job.steps[index]
            limit_s = step_limit_s(step, self._job)
            self._step_deadlines[index] = asyncio.get_running_loop().call_later(
                limit_s + STEP_S, self._step_timeout, step.name, step.timeout_ms / 1000
            )
        await self._sink.step_started(index, attempt)

    async def _step_ended(self, ended: StepEnded) -> None:
        assert self._order
        assert self._post_mortem
        self._order.end(ended)
        if ended.index in self._step_deadlines:
            self._step_deadlines.pop(ended.index).cancel()
        await self._sink.step_ended(self._post_mortem.of_step(ended))

    def _job_ended(self, ended: JobEnded) -> JobEnded:
        assert self._order
        self._order.end_job(ended)
        # What only we know of it, whatever it says.
        ended = msgspec.structs.replace(ended, reason="", exit_code=None, signal="", peak_memory_bytes=None)
        verdict = self._verdict
        if verdict is None:
            self._check(ended.status != "cancelled", "a cancelled job that nobody cancelled")
        elif _says_more(ended, verdict):
            self._verdict = msgspec.structs.replace(ended, reason=verdict.reason)
        else:
            # What the steps did until they were stopped still counts.
            self._verdict = msgspec.structs.replace(verdict, outputs=ended.outputs)
        return ended

    async def _close_steps(self, ended: JobEnded) -> None:
        """Tell the ends of steps that the runner could not tell."""
        assert self._order
        assert self._post_mortem
        status = "cancelled" if ended.status == "cancelled" else "failed"
        for index, attempt in list(self._order.running()):
            last = StepEnded(index, status, error=ended.error, attempt=attempt, reason=ended.reason)
            self._order.end(last)
            await self._sink.step_ended(self._post_mortem.of_step(last))

    def _runs(self, index: int) -> bool:
        return self._order is not None and self._order.runs(index)

    def _count_mask(self) -> None:
        self._masks += 1
        self._check(self._masks <= _MAX_MASKS, "too much to mask")

    def _check(self, fine: bool, what: str) -> None:
        if not fine:
            raise RunnerFailed(f"it sent {what}")

    @property
    def _linked(self) -> RunnerLink:
        assert self._link
        return self._link


def step_limit_s(step: LockStep, job: LockJob) -> float:
    """What an attempt of a step may take with all that belongs to it: rules, hooks, caches, and its processes' ends."""
    limit_s = (step.timeout_ms + sum(step.hooks.values())) / 1000 + 2 * CACHE_S * len(step.caches)
    if step.kind is StepKind.STEP:
        limit_s += sum(job.hooks.values()) / 1000
    rules = [*step.rules, *(job.rules if step is job.steps[0] else ())]
    return limit_s + RULE_S * sum(rule.changed is None for rule in rules)


def _says_more(ended: JobEnded, verdict: JobEnded) -> bool:
    """Whether the runner ended the job as it was asked to, and a hook failed on the way."""
    return ended.status == "failed" and ended.error.startswith((f"{verdict.error} (", f"{verdict.status} ("))
