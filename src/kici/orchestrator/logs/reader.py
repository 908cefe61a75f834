"""A page of a step's log by line numbers, from chunks or from the compacted object, whichever there is."""

from __future__ import annotations

from asyncpg import Pool, Record
from msgspec import Struct

from kici.engine.lifecycle import TERMINAL_STEP
from kici.orchestrator.errors import NotFound
from kici.orchestrator.logs import chunks, compacted
from kici.orchestrator.objects.contract import Objects
from kici.orchestrator.store import logs
from kici.orchestrator.store.database import Db, connection

PAGE_BYTES = 4 * 1024 * 1024
PAGE_CHUNKS = 256


class Page(Struct, frozen=True):
    """Lines from the cursor on, up to the first gap."""

    lines: list[str]
    total_lines: int
    """So far."""
    complete: bool
    """There will be no more lines than `total_lines`."""
    next_cursor: int | None
    """None: the log is complete and this is its end."""


class LogReader:
    def __init__(self, pool: Pool[Record], objects: Objects) -> None:
        self._pool = pool
        self._objects = objects

    async def page(
        self,
        run_id: str,
        job_id: str,
        step_index: int,
        *,
        attempt: int | None = None,
        cursor: int = 0,
        limit: int = 500,
    ) -> Page:
        """Up to `limit` lines, or `PAGE_BYTES` of text, from line `cursor` on.

        Raises `NotFound`, or `Unavailable` where the database is away.
        """
        async with connection(self._pool) as db:
            step = await logs.step(db, job_id, step_index, attempt)
            if step is None or step.run_id != run_id:
                raise NotFound(f"Run {run_id} has no step {step_index} of job {job_id}")
            if step.log_lines is None:
                return await self._from_chunks(db, step, cursor, limit)
        if step.log_path is None:
            return Page([], 0, complete=True, next_cursor=None)
        index = await compacted.read_index(self._objects, step.log_path)
        found = await compacted.read_lines(
            self._objects, step.log_path, index, cursor, cursor + limit, max_bytes=PAGE_BYTES
        )
        return _page(found, cursor, index.lines, complete=True)

    async def _from_chunks(self, db: Db, step: logs.Step, cursor: int, limit: int) -> Page:
        reach = await logs.extent(db, step)
        found: list[bytes] = []
        size = 0
        end = min(cursor + limit, reach.lines)
        for chunk in await logs.chunks_with_lines(db, step, cursor, end, PAGE_CHUNKS) if cursor < end else ():
            wanted = slice(max(0, cursor - chunk.first_line), end - chunk.first_line)
            lines = chunks.lines(chunk.data, chunk.lines)[wanted]
            size += sum(map(len, lines))
            if found and size > PAGE_BYTES:
                break
            found += lines
        return _page(found, cursor, reach.lines, complete=is_complete(step, reach.chunks))


def is_complete(step: logs.Step, chunks_there: int) -> bool:
    """Whether a log of which so many chunks are there without a gap has all it will have."""
    if step.log_lines is not None:
        return True
    if step.status not in TERMINAL_STEP:
        return False
    return chunks_there >= step.log_chunks if step.log_chunks is not None else not step.began


def text(lines: list[bytes]) -> list[str]:
    return [line.decode(errors="replace") for line in lines]


def _page(found: list[bytes], cursor: int, total: int, *, complete: bool) -> Page:
    end = cursor + len(found)
    return Page(text(found), total, complete, None if complete and (end >= total or not found) else end)
