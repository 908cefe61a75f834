from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.logs import compact
from kici.orchestrator.logs.compact import CompactLogs, Settings
from kici.orchestrator.logs.tail import Changes, Listens, RunFeed, StepTail
from kici.orchestrator.logs.writer import LogWriter
from kici.orchestrator.objects.contract import Objects
from kici.orchestrator.store import logs, notify
from tests.support import rows
from tests.support.told import Told

LINES = [f"line {number}" for number in range(30)]


class Wakes:
    """Stands for the listener."""

    def __init__(self) -> None:
        self.callbacks: dict[str, object] = {}

    def subscribe(self, channel: str, callback: object) -> None:
        self.callbacks[channel] = callback

    def hear(self, channel: str, *keys: str) -> None:
        self.callbacks[channel](set(keys))  # type: ignore[operator]


def feed(wakes: Wakes) -> RunFeed:
    listens: Listens = wakes
    return RunFeed(listens)


async def test_a_watch_is_woken_by_its_run_and_by_the_jobs_it_follows_only() -> None:
    wakes = Wakes()
    with feed(wakes).watch("run-1") as watch:
        watch.follow_jobs(["job-1", "job-2"])
        wakes.hear(notify.RUNS, "run-2")
        wakes.hear(notify.LOGS, "job-9")
        assert await watch.changed(0) == Changes(unknown=True)
        wakes.hear(notify.RUNS, "run-1", "run-2")
        wakes.hear(notify.LOGS, "job-2")
        async with asyncio.timeout(5):
            assert await watch.changed(60) == Changes(run=True, logs_of=frozenset({"job-2"}))


async def test_after_lost_notifications_everybody_looks_at_everything() -> None:
    wakes = Wakes()
    hub = feed(wakes)
    with hub.watch("run-1") as one, hub.watch("run-2") as two:
        wakes.hear(notify.RUNS)
        async with asyncio.timeout(5):
            assert (await one.changed(60)).unknown
            assert (await two.changed(60)).unknown


async def test_closing_sends_all_followers_away() -> None:
    hub = feed(Wakes())
    with hub.watch("run-1") as watch:
        hub.close()
        async with asyncio.timeout(5):
            assert (await watch.changed(60)).closing
            assert (await watch.changed(60)).closing


async def test_a_watch_that_ended_leaves_nothing_behind() -> None:
    hub = feed(Wakes())
    with hub.watch("run-1") as watch:
        watch.follow_jobs(["job-1"])
    assert hub._watches == {}


async def row(pool: Pool[Record], job: rows.Job) -> logs.Step:
    async with pool.acquire() as db:
        step = await logs.step(db, job.job_id, 0)
    assert step
    return step


async def rest(pool: Pool[Record], tail: StepTail, job: rows.Job) -> list[str]:
    found = []
    async with asyncio.timeout(10):
        while (new := await tail.read(await row(pool, job))) is not None:
            found += new.lines
    return found


@pytest.mark.parametrize("compact_at", [0, 1, 2, 3])
async def test_every_line_comes_once_whenever_the_log_is_compacted(
    pool: Pool[Record], writer: LogWriter, objects: Objects, job: rows.Job, compact_at: int
) -> None:
    sent = rows.chunked(job, LINES, 10)
    tail = StepTail(pool, objects)
    found: list[str] = []
    async with asyncio.timeout(20):
        for number, chunk in enumerate(sent):
            await writer.append(job.session_id, chunk)
            if number < compact_at:
                found += await rest(pool, tail, job)
        assert not tail.complete
        await rows.end_step(pool, job.step_ids[0], chunks=3)
        async with pool.acquire() as db:
            await compact.put(db, job.step_ids[0])
        assert (await CompactLogs(pool, objects, Wakes(), Told(), Settings()).run_once()).closed == 1
        found += await rest(pool, tail, job)
    assert found == LINES
    assert tail.complete


async def test_a_gap_stops_the_tail_until_it_is_filled_or_given_up(
    pool: Pool[Record], writer: LogWriter, objects: Objects, job: rows.Job
) -> None:
    sent = rows.chunked(job, LINES, 10)
    tail = StepTail(pool, objects)
    async with asyncio.timeout(20):
        for number in (0, 2):
            await writer.append(job.session_id, sent[number])
        assert await rest(pool, tail, job) == LINES[:10]
        await rows.end_step(pool, job.step_ids[0], chunks=3)
        assert await rest(pool, tail, job) == []
        assert not tail.complete
        async with pool.acquire() as db:
            await compact.put(db, job.step_ids[0])
        await CompactLogs(pool, objects, Wakes(), Told(), Settings(patience=timedelta(0))).run_once()
        marked, *following = await rest(pool, tail, job)
    assert "[kici] one piece of the log missing here" in marked
    assert following == LINES[20:]
    assert tail.complete
