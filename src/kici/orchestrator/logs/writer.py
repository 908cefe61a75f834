"""Takes log chunks from agents' sockets into the database, many in one commit."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import asyncpg
import structlog
from asyncpg import Pool, Record
from prometheus_client import Counter, Gauge, Histogram

from kici.orchestrator.errors import Unavailable
from kici.orchestrator.logs import chunks
from kici.orchestrator.store import logs, notify
from kici.orchestrator.store.group_commit import GroupCommit
from kici.wire.agent import LogChunk

log = structlog.get_logger(__name__)

MAX_ITEMS = 512
MAX_BYTES = 8 * 1024 * 1024

STORED = Counter("kici_log_chunks_stored_total", "Log chunks that were stored or had been stored already")
STORED_BYTES = Counter("kici_log_chunk_bytes_total", "Compressed bytes of stored log chunks")
REFUSED = Counter("kici_log_chunks_refused_total", "Log chunks that were thrown away for good")
AGAIN = Counter("kici_log_chunks_retried_total", "How often a log chunk had to wait for the database to answer again")
WAITING = Gauge("kici_log_bytes_waiting", "Compressed bytes of log chunks that have come and are not stored yet")
APPENDED = Histogram(
    "kici_log_append_seconds",
    "From a log chunk's arrival to its commit",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)
TOGETHER = Histogram(
    "kici_log_batch_chunks", "Log chunks in one commit", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
)

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Tells(Protocol):
    def send(self, channel: str, key: str = "") -> None: ...


Answer: TypeAlias = str | None


class LogWriter:
    """A chunk is taken if its attempt is the job's current one and the session belongs to the agent that has it.

    A job that has ended still takes the chunks of its last attempt. The order of arrival does not matter, and a chunk
    that was sent before changes nothing.
    """

    def __init__(self, pool: Pool[Record], notifier: Tells) -> None:
        self._pool = pool
        self._notifier = notifier
        self._commits: GroupCommit[logs.Sent, Answer] = GroupCommit(
            self._apply, max_items=MAX_ITEMS, max_bytes=MAX_BYTES, size_of=lambda item: len(item.data)
        )

    async def run(self) -> None:
        await self._commits.run()

    async def append(self, session_id: str, chunk: LogChunk) -> Answer:
        """None once the chunk is committed; else the reason for which it was thrown away, for good."""
        reason = chunks.problem(chunk)
        if reason is None and not _UUID.fullmatch(chunk.job_id):
            reason = f"there is no job {chunk.job_id!r}"
        if reason is None:
            reason = await self._submit(
                logs.Sent(
                    session_id=session_id,
                    job_id=chunk.job_id,
                    attempt=chunk.attempt,
                    step_index=chunk.step_index,
                    sequence=chunk.sequence,
                    first_line=chunk.first_line,
                    lines=chunk.lines,
                    data=chunk.data,
                )
            )
        if reason is None:
            STORED.inc()
            STORED_BYTES.inc(len(chunk.data))
        else:
            REFUSED.inc()
        return reason

    async def _submit(self, chunk: logs.Sent) -> Answer:
        arrived = time.perf_counter()
        size = len(chunk.data)
        WAITING.inc(size)
        try:
            return await self._commits.submit(chunk)
        except Unavailable:
            AGAIN.inc()
            raise
        finally:
            WAITING.dec(size)
            APPENDED.observe(time.perf_counter() - arrived)

    async def _apply(self, sent: Sequence[logs.Sent]) -> list[Answer]:
        async with self._pool.acquire() as db:
            try:
                answers = await logs.append(db, sent)
            except asyncpg.CheckViolationError:
                # An attempt began in a new hour, or its partition was dropped: it was old and all in it was closed.
                for hour in await logs.hours_of(db, {chunk.job_id for chunk in sent}):
                    async with db.transaction():
                        await logs.create_partition(db, hour)
                answers = await logs.append(db, sent)
        TOGETHER.observe(len(sent))
        for job_id in {chunk.job_id for chunk, answer in zip(sent, answers, strict=True) if answer is None}:
            self._notifier.send(notify.LOGS, job_id)
        return answers
