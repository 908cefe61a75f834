"""One job in one box, from the host's side: starts the runner, talks to it, limits it, and says how the job ended.

User code can write to the runner's socket. So nothing that comes from there is believed: sizes, step indexes and the
order of messages are checked, and a runner that breaks the protocol is killed and its job failed. The deadlines run
here, where no busy loop of a step stops them.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from kici.agent.sandbox.contract import Box, BoxSpec, Sandbox
from kici.agent.transfers import ProtocolBroken, Transfers
from kici.engine import timeouts
from kici.engine.lockfile import LockJob
from kici.errors import KiciError
from kici.wire.codec import UnreadableMessage
from kici.wire.runner import (
    MAX_BYTES,
    ArtifactBegin,
    ArtifactData,
    ArtifactEnd,
    ArtifactFetch,
    Cancel,
    FromHost,
    FromRunner,
    JobEnded,
    Mask,
    Output,
    Ready,
    Start,
    StepEnded,
    StepStarted,
    from_host,
    from_runner,
)

READY_S = 60.0
REPORT_S = 2.0
"""Beyond the grace period, for a runner to tell how a cancelled job ended."""
STEP_S = 15.0
"""Beyond a step's timeout, for a runner to end the step itself."""
LAST_S = 1.0
"""For reading what a dead runner has said."""
MAX_OUTPUT_BYTES = 65_536
_MAX_ERROR_CHARS = 8_000
_MAX_MASK_CHARS = 65_536
_MAX_MASKS = 10_000


class Sink(Protocol):
    """Who hears of the job. Awaiting `output` is the back-pressure: the step waits while it does."""

    async def step_started(self, index: int, attempt: int) -> None: ...
    async def step_ended(self, ended: StepEnded) -> None: ...
    async def output(self, index: int, data: bytes) -> None: ...
    def mask(self, value: str) -> None: ...
    async def upload(self, name: str, data: AsyncIterator[bytes]) -> None: ...
    def download(self, name: str) -> AsyncIterator[bytes]: ...


class RunnerFailed(KiciError):
    """The runner could not be started, died, or broke the protocol. The message says how."""

    code = "runner_failed"
    status = 500


class Execution:
    """`prepare`, then `run` once, and always `close`. `cancel` may come at any time in between."""

    def __init__(self, sandbox: Sandbox, spec: BoxSpec, *, sink: Sink) -> None:
        self._sandbox = sandbox
        self._spec = spec
        self._sink = sink
        self._box: Box | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._transfers = Transfers(sink, self._send)
        self._job: LockJob | None = None
        self._running: tuple[int, int] | None = None
        """The step that runs, and its attempt."""
        self._done: tuple[int, int] = (-1, 0)
        """The last step that ended, and its attempt, if another attempt of it may follow."""
        self._again = False
        self._masks = 0
        self._verdict: JobEnded | None = None
        """How the job ends whatever the runner says from now on."""
        self._cancelled = ""
        self._forced = False
        self._stopping: asyncio.Event = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None
        self._step_deadline: asyncio.TimerHandle | None = None

    def path(self, host: Path) -> str:
        """Where a file below `BoxSpec.root` stands inside. After `prepare`."""
        assert self._box
        return self._box.path(host)

    async def prepare(self) -> None:
        """Start the runner and wait until it is ready for its job.

        Raises `SandboxUnavailable`, or `RunnerFailed` with what the runner said last.
        """
        ours, theirs = socket.socketpair()
        try:
            self._box = await self._sandbox.start(self._spec, theirs.fileno())
            self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=MAX_BYTES)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        try:
            async with asyncio.timeout(READY_S):
                ready = await self._receive()
        except TimeoutError:
            raise RunnerFailed(f"the runner was not ready within {READY_S:.0f} s. {self._box.last_words()}") from None
        except UnreadableMessage as error:
            raise RunnerFailed(f"the runner did not say that it is ready: {error}") from error
        if not isinstance(ready, Ready):
            await self._box.kill()
            words = self._box.last_words()
            raise RunnerFailed(f"{_died(await self._box.wait())} before it was ready: {words or 'it says nothing'}")

    async def run(self, start: Start, *, spent_s: float = 0.0) -> JobEnded:
        """Run the job to its end. Whatever happens inside, this returns, and no process of the job is left.

        `spent_s` of the job's timeout are over.
        """
        assert self._box
        assert self._writer
        self._job = start.job
        conversation = asyncio.create_task(self._converse(start))
        stopped = asyncio.create_task(self._stopping.wait())
        died = asyncio.create_task(self._box.wait())
        try:
            if self._cancelled:
                self._begin_cancel(self._cancelled, self._forced)
            if start.job.timeout_ms is not None:
                limit_ms = start.job.timeout_ms
                self._deadline = asyncio.get_running_loop().call_later(
                    max(limit_ms / 1000 - spent_s, 0), self._job_timeout, limit_ms
                )
            await asyncio.wait((conversation, stopped, died), return_when=asyncio.FIRST_COMPLETED)
            if died.done():
                # What it said last may still be in the socket, which a process that it forked may hold open.
                await asyncio.wait((conversation, stopped), timeout=LAST_S, return_when=asyncio.FIRST_COMPLETED)
            told = conversation.result() if conversation.done() else None
        finally:
            for timer in (self._deadline, self._step_deadline):
                if timer is not None:
                    timer.cancel()
            for task in (stopped, died, conversation):
                task.cancel()
            await self._box.kill()
            with suppress(asyncio.CancelledError):
                await conversation
            await self._transfers.close()
        ended = self._verdict or told or JobEnded("failed", f"{_died(await self._box.wait())} before the job ended")
        await self._close_step(ended)
        return ended

    def cancel(self, reason: str, *, force: bool = False) -> None:
        """Ask the job to end: its steps get the grace period, unless `force`. Again with `force`: kill at once."""
        self._forced = self._forced or force
        self._cancelled = self._cancelled or reason or "cancelled"
        if self._job is not None:
            self._begin_cancel(self._cancelled, self._forced)

    async def close(self) -> None:
        """Leave nothing behind. Safe at any time, and again."""
        if self._box is not None:
            await self._box.kill()
        if self._writer is not None:
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()

    # ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin_cancel(self, reason: str, force: bool) -> None:
        if self._verdict is None:
            self._verdict = JobEnded("cancelled", reason)
            self._ask_to_end(reason)
        if force:
            self._stopping.set()

    def _job_timeout(self, limit_ms: int) -> None:
        if self._verdict is None:
            reason = timeouts.of_job(limit_ms)
            self._verdict = JobEnded("failed", reason)
            self._ask_to_end(reason)

    def _ask_to_end(self, reason: str) -> None:
        assert self._job
        assert self._writer
        if self._deadline is not None:
            self._deadline.cancel()
        if self._step_deadline is not None:
            self._step_deadline.cancel()
        self._writer.write(_frame(Cancel(reason)))
        grace_s = self._job.grace_period_ms / 1000
        self._deadline = asyncio.get_running_loop().call_later(grace_s + REPORT_S, self._stopping.set)

    def _step_timeout(self, name: str, limit_s: float) -> None:
        if self._verdict is None:
            error = f"step {name!r} did not stop at its timeout of {limit_s:g} s: the job was killed"
            self._verdict = JobEnded("failed", error)
        self._stopping.set()

    # ── what the runner says ─────────────────────────────────────────────────────────────────────────────────────────

    async def _converse(self, start: Start) -> JobEnded | None:
        """Until the job has ended or the runner is gone (None)."""
        try:
            await self._send(start)
            while True:
                message = await self._receive()
                if message is None:
                    return None
                if isinstance(message, JobEnded):
                    return self._job_ended(message)
                await self._heard(message)
        except (UnreadableMessage, RunnerFailed, ProtocolBroken) as error:
            return JobEnded("failed", f"the runner broke the protocol: {error}")
        except OSError:  # the runner is gone while we wrote
            return None

    async def _heard(self, message: FromRunner) -> None:
        match message:
            case Output(index, data):
                self._check(index == -1 or (self._running or (None,))[0] == index, f"output of step {index}")
                self._check(len(data) <= MAX_OUTPUT_BYTES, f"{len(data):,} bytes of output at once")
                await self._sink.output(index, data)
            case StepStarted(index, attempt):
                await self._step_started(index, attempt)
            case StepEnded():
                await self._step_ended(message)
            case Mask(value):
                self._masks += 1
                self._check(self._masks <= _MAX_MASKS and len(value) <= _MAX_MASK_CHARS, "too much to mask")
                self._sink.mask(value)
            case ArtifactBegin() | ArtifactData() | ArtifactEnd() | ArtifactFetch():
                await self._transfers.heard(message)
            case _:
                self._check(False, f"{type(message).__name__} now")

    async def _step_started(self, index: int, attempt: int) -> None:
        assert self._job
        before, attempts = self._done
        expected = (before, attempts + 1) if self._again else (before + 1, 1)
        self._check(self._running is None and (index, attempt) == expected, f"start of step {index}, attempt {attempt}")
        self._check(index < len(self._job.steps), f"start of step {index} of {len(self._job.steps)}")
        step = self._job.steps[index]
        limit = step.retry.attempts if step.retry else 1
        self._check(attempt <= limit, f"attempt {attempt} of {limit}")
        self._running = (index, attempt)
        if self._verdict is None:
            limit_s = step.timeout_ms / 1000
            self._step_deadline = asyncio.get_running_loop().call_later(
                limit_s + STEP_S, self._step_timeout, step.name, limit_s
            )
        await self._sink.step_started(index, attempt)

    async def _step_ended(self, ended: StepEnded) -> None:
        self._check(self._running == (ended.index, ended.attempt), f"end of step {ended.index}")
        self._check(ended.status in ("success", "failed", "skipped", "cancelled"), f"step status {ended.status!r}")
        if self._step_deadline is not None:
            self._step_deadline.cancel()
        self._running = None
        self._done = (ended.index, ended.attempt)
        self._again = not ended.final
        await self._sink.step_ended(msgspec.structs.replace(ended, error=ended.error[:_MAX_ERROR_CHARS]))

    def _job_ended(self, ended: JobEnded) -> JobEnded:
        assert self._job
        self._check(self._running is None, "end of the job while a step runs")
        self._check(ended.status in ("success", "failed", "cancelled", "drift_dropped"), f"job status {ended.status!r}")
        if ended.status == "success":
            complete = self._done[0] == len(self._job.steps) - 1 and not self._again
            self._check(complete, f"success after {self._done[0] + 1} of {len(self._job.steps)} steps")
        if ended.status == "cancelled":
            self._check(self._verdict is not None, "a cancelled job that nobody cancelled")
        if self._verdict is not None:
            # What the steps did until they were stopped still counts.
            self._verdict = msgspec.structs.replace(self._verdict, outputs=ended.outputs)
        return msgspec.structs.replace(ended, error=ended.error[:_MAX_ERROR_CHARS])

    async def _close_step(self, ended: JobEnded) -> None:
        """Tell the end of a step that the runner could not tell."""
        if self._running is not None:
            (index, attempt), self._running = self._running, None
            status = "cancelled" if ended.status == "cancelled" else "failed"
            await self._sink.step_ended(StepEnded(index, status, error=ended.error, attempt=attempt))

    def _check(self, fine: bool, what: str) -> None:
        if not fine:
            raise RunnerFailed(f"it sent {what}")

    # ── the socket ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _send(self, message: FromHost) -> None:
        assert self._writer
        self._writer.write(_frame(message))
        await self._writer.drain()

    async def _receive(self) -> FromRunner | None:
        """None if the runner has closed the socket, also in the middle of a message."""
        assert self._reader
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            if size > MAX_BYTES:
                raise UnreadableMessage(f"a message of {size:,} bytes is over the limit of {MAX_BYTES:,}")
            return from_runner.decode(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None


def _frame(message: FromHost) -> bytes:
    body = from_host.encode(message)
    return len(body).to_bytes(4, "big") + body


def _died(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"the runner was killed by {signal.Signals(-code).name}"
        return f"the runner was killed by signal {-code}"
    return f"the runner exited with code {code}"
