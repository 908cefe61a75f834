"""Tells the orchestrator what a job does: the runner's sink. Everything that leaves here is masked."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from kici.agent import artifacts, caches, told
from kici.agent.errors import TransferFailed
from kici.agent.job_api import JobApi
from kici.agent.log_stream import StepLog
from kici.agent.masking import Secrets
from kici.agent.outbox import Outbox
from kici.agent.remarks import Remarks
from kici.engine.lifecycle import StepStatus
from kici.engine.lockfile import LockJob
from kici.wire.agent import Annotation, AttemptRef, StepStatusChanged
from kici.wire.runner import StepEnded

PREPARATION = -1
MAX_ERROR_CHARS = 8_000


class Reporter:
    def __init__(
        self,
        attempt: AttemptRef,
        outbox: Outbox,
        secrets: Secrets,
        api: JobApi,
        *,
        log_limit_bytes: int,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._attempt = attempt
        self._outbox = outbox
        self._secrets = secrets
        self._api = api
        self._limit = log_limit_bytes
        self._now = now
        self._names = {PREPARATION: "preparation"}
        self._logs: dict[int, StepLog] = {}
        self._started: dict[int, int] = {}
        """Steps that run: index → when, in ms."""
        self._attempts: dict[int, int] = {}
        self._remarks: dict[int, Remarks] = {}

    def names(self, job: LockJob) -> None:
        self._names |= {index: step.name for index, step in enumerate(job.steps)}

    # ── preparation ──────────────────────────────────────────────────────────────────────────────────────────────────

    def prepare(self) -> None:
        self._running(PREPARATION, 1)

    def say(self, text: str) -> None:
        """Into the log of the preparation."""
        self._log(PREPARATION).say(text)

    def not_prepared(self, error: str, status: StepStatus, reason: str) -> None:
        self._end(StepEnded(PREPARATION, status, error=error, reason=reason))

    # ── what the runner tells ────────────────────────────────────────────────────────────────────────────────────────

    async def step_started(self, index: int, attempt: int) -> None:
        if PREPARATION in self._started:
            # Not before: what the workflow's module prints when it is imported belongs to the preparation.
            self._end(StepEnded(PREPARATION, StepStatus.SUCCESS))
        self._running(index, attempt)

    async def step_ended(self, ended: StepEnded) -> None:
        if ended.final:
            self._end(ended)
        else:
            self._say(ended.index, f"attempt {ended.attempt} failed: {ended.error or 'no reason given'}")
            self._remarks.pop(ended.index, None)

    async def output(self, index: int, data: bytes) -> None:
        await self._log(index).write(data)

    def mask(self, value: str) -> None:
        self._secrets.add(value)

    def annotated(self, index: int, level: str, message: str, file: str, line: int) -> None:
        self._left_out(index, self._remarks_of(index).annotate(level, message, file, line))

    def summarized(self, index: int, markdown: str) -> None:
        self._left_out(index, self._remarks_of(index).summarize(markdown))

    async def secret_output(self, name: str, value: str) -> None:
        """Hidden from here on, whether or not the orchestrator takes it."""
        self._secrets.add(value)
        await told.hand_over(self._api, name, value)

    async def emit(self, name: str, payload: Any, key: str) -> str:
        return await told.emit(self._api, self._secrets.mask(name), self._secrets.mask_all(payload), key)

    async def upload(self, name: str, data: AsyncIterator[bytes]) -> None:
        await artifacts.upload(self._api, name, data)

    def download(self, name: str) -> AsyncGenerator[bytes, None]:
        return artifacts.download(self._api, name)

    async def cache_fetch(self, key: str, restore: tuple[str, ...]) -> tuple[str, AsyncGenerator[bytes, None]] | None:
        return await caches.fetch(self._api, key, restore)

    async def cache_save(self, key: str, data: AsyncIterator[bytes]) -> None:
        """Raises `TransferFailed` also for one that is not kept, since its key is taken or there is no room for it."""
        reason = await caches.save(self._api, key, data)
        if reason:
            raise TransferFailed(reason)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self, status: StepStatus, error: str, reason: str = "") -> None:
        """Whatever is still open ends like this: the job is over."""
        for index in sorted(self._started):
            attempt = self._attempts[index]
            self._end(StepEnded(index, status, error=error, attempt=attempt, reason=reason))
        for step_log in self._logs.values():
            step_log.close()

    def hide(self, text: str) -> str:
        return self._secrets.mask(text)

    def clean(self, error: str) -> str:
        """An error that may leave: masked, bounded, encodable."""
        return self._secrets.mask(error)[:MAX_ERROR_CHARS]

    def _running(self, index: int, attempt: int) -> None:
        at_ms = self.now_ms()
        self._started.setdefault(index, at_ms)
        self._attempts[index] = attempt
        self._status(index, StepStatus.RUNNING, at_ms, step_attempt=attempt)

    def _end(self, ended: StepEnded) -> None:
        at_ms = self.now_ms()
        if ended.index in self._started and ended.error and ended.status in (StepStatus.FAILED, StepStatus.CANCELLED):
            self._say(ended.index, ended.error)
        chunks = self._logs[ended.index].close() if ended.index in self._logs else 0
        remarks = self._remarks.pop(ended.index, None)
        self._status(
            ended.index,
            ended.status,
            at_ms,
            started_at_ms=self._started.pop(ended.index, at_ms),
            ended=ended,
            log_chunks=chunks,
            step_attempt=ended.attempt,
            annotations=remarks.annotations() if remarks else (),
            summary=remarks.summary() if remarks else "",
        )

    def _status(
        self,
        index: int,
        status: str,
        at_ms: int,
        *,
        started_at_ms: int = 0,
        ended: StepEnded | None = None,
        log_chunks: int = 0,
        step_attempt: int = 1,
        annotations: tuple[Annotation, ...] = (),
        summary: str = "",
    ) -> None:
        self._outbox.put(
            StepStatusChanged(
                job_id=self._attempt.job_id,
                attempt=self._attempt.attempt,
                step_index=index,
                name=self._names.get(index, f"step-{index + 1}"),
                status=status,
                at_ms=at_ms,
                started_at_ms=started_at_ms,
                exit_code=ended.exit_code if ended else None,
                error=self.clean(ended.error) if ended else "",
                log_chunks=log_chunks,
                step_attempt=step_attempt,
                annotations=annotations,
                summary=summary,
                reason=ended.reason if ended else "",
                signal=ended.signal if ended else "",
                last_lines=self.hide(ended.last_lines) if ended else "",
                peak_memory_bytes=ended.peak_memory_bytes if ended else None,
            )
        )

    def _remarks_of(self, index: int) -> Remarks:
        return self._remarks.setdefault(index, Remarks(self._secrets))

    def _left_out(self, index: int, what: str) -> None:
        if what:
            self._say(index, what)

    def _say(self, index: int, text: str) -> None:
        self._log(index).say(f"[kici] {text}")

    def _log(self, index: int) -> StepLog:
        if index not in self._logs:
            self._logs[index] = StepLog(
                self._outbox, self._attempt, index, self._secrets, limit_bytes=self._limit, now=self._now
            )
        return self._logs[index]

    def now_ms(self) -> int:
        return int(self._now() * 1000)
