from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
from asyncpg import Pool, Record

from kici.orchestrator.logs import compact
from kici.orchestrator.store import notify
from tests.support import rows
from tests.support.api_server import Parts

LINES = [f"2026-01-02T03:04:05.678Z line {number} \u2028 é" for number in range(40)]


class Events:
    """What one client hears."""

    def __init__(self, answer: httpx.Response) -> None:
        self._pieces = answer.aiter_bytes()
        self._rest = b""
        self.lines: list[str] = []

    async def next(self) -> tuple[str, Any]:
        while True:
            block = await self._block()
            if block.startswith(b":"):
                continue
            event, data = block.split(b"\n")
            name, body = event.removeprefix(b"event: ").decode(), msgspec.json.decode(data.removeprefix(b"data: "))
            if name == "log":
                assert body["firstLine"] == len(self.lines)
                self.lines += body["lines"]
            return name, body

    async def _block(self) -> bytes:
        async with asyncio.timeout(10):
            while b"\n\n" not in self._rest:
                try:
                    self._rest += await anext(self._pieces)
                except StopAsyncIteration:
                    raise EOFError from None
        block, _, self._rest = self._rest.partition(b"\n\n")
        return block

    async def until(self, wanted: str) -> Any:
        while True:
            event, body = await self.next()
            if event == wanted:
                return body

    async def lines_until(self, count: int) -> list[str]:
        while len(self.lines) < count:
            await self.until("log")
        return self.lines


@asynccontextmanager
async def watching(admin: httpx.AsyncClient, run_id: str, query: str = "?logs=1") -> AsyncIterator[Events]:
    async with admin.stream("GET", f"/api/v1/admin/runs/{run_id}/stream{query}") as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Events(answer)


async def send(parts: Parts, job: rows.Job, *sequences: int) -> None:
    sent = rows.chunked(job, LINES, 10)
    for sequence in sequences:
        assert await parts.writer.append(job.session_id, sent[sequence]) is None


async def end_run(pool: Pool[Record], parts: Parts, job: rows.Job, *, chunks: int) -> None:
    await rows.end_step(pool, job.step_ids[0], chunks=chunks)
    await pool.execute("update execution_steps set status = 'skipped', started_at = null where step_index = 1")
    await pool.execute("update execution_jobs set status = 'success', completed_at = now()")
    await pool.execute("update execution_runs set status = 'success', completed_at = now()")
    parts.notifier.send(notify.RUNS, job.run_id)


async def test_the_present_state_comes_first_then_what_happens_and_the_end_last(
    pool: Pool[Record], parts: Parts, admin: httpx.AsyncClient, job: rows.Job
) -> None:
    await send(parts, job, 0)
    async with watching(admin, job.run_id) as events:
        assert [(await events.next())[0] for _ in range(5)] == ["run", "job", "step", "step", "log"]
        await send(parts, job, 1, 2)
        assert await events.lines_until(30) == LINES[:30]
        await end_run(pool, parts, job, chunks=4)
        assert (await events.until("run"))["status"] == "success"
        await send(parts, job, 3)
        assert await events.until("end") == {"runId": job.run_id, "status": "success", "logsComplete": True}
        assert events.lines == LINES


async def test_many_clients_see_the_same_over_one_listener(
    pool: Pool[Record], parts: Parts, admin: httpx.AsyncClient, job: rows.Job
) -> None:
    async def watch() -> list[str]:
        async with watching(admin, job.run_id) as events:
            await events.until("run")
            ready.release()
            await events.until("end")
            return events.lines

    ready = asyncio.Semaphore(0)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        clients = [group.create_task(watch()) for _ in range(20)]
        for _ in clients:
            await ready.acquire()
        await send(parts, job, 0, 1, 2, 3)
        await end_run(pool, parts, job, chunks=4)
    assert [client.result() for client in clients] == [LINES] * 20
    listening = await pool.fetchval("select count(*) from pg_stat_activity where query ilike 'listen%'")
    assert listening <= 1


async def test_a_run_that_has_ended_is_told_from_the_compacted_log(
    pool: Pool[Record], parts: Parts, admin: httpx.AsyncClient, job: rows.Job
) -> None:
    await send(parts, job, 0, 1, 2, 3)
    await end_run(pool, parts, job, chunks=4)
    async with pool.acquire() as db:
        await compact.put(db, job.step_ids[0])
    assert (await parts.compactor.run_once()).closed == 1
    await pool.execute("truncate log_chunks")
    async with watching(admin, job.run_id) as events:
        assert (await events.until("end"))["logsComplete"] is True
        assert events.lines == LINES


async def test_lines_that_never_come_do_not_hold_the_end_up_for_ever(
    pool: Pool[Record], parts: Parts, admin: httpx.AsyncClient, job: rows.Job
) -> None:
    await send(parts, job, 0)
    await end_run(pool, parts, job, chunks=4)
    async with watching(admin, job.run_id) as events:
        assert (await events.until("end"))["logsComplete"] is False
        assert events.lines == LINES[:10]


async def test_without_logs_there_are_none(
    pool: Pool[Record], parts: Parts, admin: httpx.AsyncClient, job: rows.Job
) -> None:
    await send(parts, job, 0)
    async with watching(admin, job.run_id, query="") as events:
        await events.until("step")
        await end_run(pool, parts, job, chunks=4)
        assert (await events.until("end"))["status"] == "success"
        assert events.lines == []


async def test_a_server_that_stops_sends_its_clients_away_without_an_end(
    parts: Parts, admin: httpx.AsyncClient, job: rows.Job
) -> None:
    async with watching(admin, job.run_id) as events:
        await events.until("run")
        parts.feed.close()
        seen = []
        try:
            while True:
                seen.append((await events.next())[0])
        except EOFError:
            pass
        assert "end" not in seen
