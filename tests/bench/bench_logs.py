"""Logs from an agent to the database, and from there to who follows them.

`log_ingest_mb_s`: the bytes of one step go through a real agent's masking, chunks, outbox and socket into the
orchestrator; the clock stops when all of them are acknowledged, so committed. The floor, in turn with it: this process
compresses what is stored, lines with their times, in chunks of the same size, and copies them into a table of the same
database. The rate counts the bytes that the step wrote.

`log_tail_ms`: one agent in a process of its own floods the log of one job, and writes the time into the log of another
every 20 ms. This process follows the other job's run as the dashboard does (server-sent events). The floor is not
measured: it is the 100 ms after which an agent sends what it has.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
import httpx
import msgspec
import zstandard

from kici.agent.log_stream import CHUNK_BYTES, FLUSH_S, ZSTD_LEVEL
from tests.bench.harness import Reference, Result, compare, machine, percentile
from tests.bench.log_agent import LogAgent, connected, output
from tests.support import stack
from tests.support.stack import Stack

NAMES = ("log_ingest_mb_s", "log_tail_ms")
ROUNDS = 5
ROUND_BYTES = 32 * 1024 * 1024
TAIL_S = 20.0
WORKFLOW = """
from kici import job, push, workflow

{name} = workflow("{name}", on=push(branches="{name}"), jobs=[job("{name}", runs_on="linux", steps=["true"])])
"""


def run() -> list[Result]:
    return asyncio.run(measure())


async def measure() -> list[Result]:
    async with stack.running_on_disk("--no-agent") as up:
        token = json.loads(await up.run_admin("agent", "register", "--json"))["token"]
        runs = {name: await start(up, name) for name in ("flood", "ticks")}
        tail = await tailing(up, token, runs["ticks"])
        ingest = await start(up, "ingest")
        async with connected(up.url.replace("http", "ws") + "/ws", token) as agent:
            await agent.job("ingest")
            return [await ingesting(up, agent, ingest), tail]


async def start(up: Stack, name: str) -> str:
    """The id of a run with one job, both called so, that waits for an agent."""
    root = await up.repository(WORKFLOW.format(name=name), name=name)
    sha = await up.push(root, name)
    return str((await up.run_of(sha))["runId"])


async def ingesting(up: Stack, agent: LogAgent, run_id: str) -> Result:
    pieces = output(ROUND_BYTES)
    size_mb = sum(map(len, pieces)) / 1e6
    job = await agent.job("ingest")
    rates: list[float] = []
    floors: list[float] = []
    db = await asyncpg.connect(up.database_url())
    try:
        await db.execute("create table bench_log_floor (number int primary key, data bytea not null)")
        await db.execute("alter table bench_log_floor alter column data set storage external")
        for number in range(ROUNDS + 1):
            floor = size_mb / await copy(db, pieces)
            log = agent.log(job, step_index=number)
            started = time.perf_counter()
            for piece in pieces:
                await log.write(piece)
                await asyncio.sleep(0)  # as reading the next piece from a runner does
            log.close()
            await agent.outbox.empty()
            rate = size_mb / (time.perf_counter() - started)
            if number:
                rates.append(rate)
                floors.append(floor)
        stored = await db.fetchval("select sum(lines) from log_chunks where job_id = $1", job.job_id)
        lines = (ROUNDS + 1) * sum(piece.count(b"\n") for piece in pieces)
        if not lines <= stored <= lines + ROUNDS + 1:
            raise RuntimeError(f"{stored} lines of {lines} were stored for run {run_id}")
    finally:
        await db.close()
    return compare("log_ingest_mb_s", rates, "zstd + COPY", floors, limit=0.4, unit="MB/s", at_least=True)


async def copy(db: asyncpg.Connection[asyncpg.Record], pieces: Sequence[bytes]) -> float:
    """Seconds for compressing and copying. The table is emptied before, outside of the time."""
    await db.execute("truncate bench_log_floor")
    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
    stamp = b"2026-01-02T03:04:05.678Z "
    whole = stamp + b"".join(pieces).replace(b"\n", b"\n" + stamp)
    chunks = [whole[at : at + CHUNK_BYTES] for at in range(0, len(whole), CHUNK_BYTES)]
    started = time.perf_counter()
    await db.copy_records_to_table(
        "bench_log_floor", records=((number, compressor.compress(chunk)) for number, chunk in enumerate(chunks))
    )
    return time.perf_counter() - started


async def tailing(up: Stack, token: str, run_id: str) -> Result:
    waits: list[float] = []
    async with writing(up, token):
        warm_until = time.monotonic() + 2
        ends = warm_until + TAIL_S
        async for text in followed(up, run_id):
            now = time.monotonic_ns()
            if now / 1e9 > ends:
                break
            if now / 1e9 > warm_until:
                waits.append((now - int(text)) / 1e6)
    p99 = percentile(waits, 0.99)
    return Result(
        name="log_tail_ms",
        value=p99,
        unit="ms",
        samples=len(waits),
        p50=percentile(waits, 0.5),
        p99=p99,
        floor=Reference("flush interval", FLUSH_S * 1_000),
        ratio=p99 / (FLUSH_S * 1_000),
        limit=1.5,
        machine=machine(),
    )


async def followed(up: Stack, run_id: str) -> AsyncIterator[str]:
    """The lines of the run's logs, as they come, without their times."""
    url = f"{up.url}/api/v1/admin/runs/{run_id}/stream"
    patience = httpx.Timeout(30)
    async with up.http.stream("GET", url, params={"logs": "1"}, timeout=patience) as answer:
        kind = ""
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            elif name == "data" and kind == "log":
                for text in msgspec.json.decode(value)["lines"]:
                    yield text.partition(" ")[2]


@asynccontextmanager
async def writing(up: Stack, token: str) -> AsyncIterator[None]:
    """The agent in a process of its own, while it writes."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.log_agent"),
        stdin=asyncio.subprocess.PIPE,
        env=os.environ | {"LOG_AGENT_URL": up.url.replace("http", "ws") + "/ws", "LOG_AGENT_TOKEN": token},
    )
    try:
        yield
    finally:
        assert process.stdin
        process.stdin.close()
        if await process.wait():
            raise RuntimeError(f"the agent ended with {process.returncode}")
