"""Webhook intake beside a bare ASGI application that does the least for the same durability, on the same server.

What we take in is worked on afterwards, so each sample of either waits until nothing of the one before is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg

from tests.bench.floor_app import SECRET
from tests.bench.harness import Result, compare, percentile
from tests.support import stack
from tests.support.stack import Stack

NAMES = ("webhook_ack_ms_c1", "webhook_rps_c16", "webhook_ack_p99_ms_c16")
ALONE = 200
TOGETHER = 1_600
CLIENTS = 16
ROUNDS = 5
PADDING = 10_000


class Target:
    """Deliveries to one path, each new and signed, over connections that stay open."""

    def __init__(self, port: int, path: str) -> None:
        self._port = port
        self._path = path
        self._head = b'{"ref":"refs/heads/none","after":"' + b"0" * 40 + b'","repository":{"full_name":"a/b"},"pad":"'

    def _request(self) -> bytes:
        delivery = uuid.uuid4().hex
        body = self._head + delivery.encode() + b"x" * (PADDING - len(self._head) - 34) + b'"}'
        signature = hmac.new(SECRET, body, hashlib.sha256).hexdigest()
        return (
            f"POST {self._path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"x-github-event: push\r\nx-github-delivery: {delivery}\r\nx-hub-signature-256: sha256={signature}\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        ).encode() + body

    async def deliver(self, count: int) -> list[float]:
        """Milliseconds from the first byte sent to the last one of the answer, one after another."""
        requests = [self._request() for _ in range(count)]
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        took = []
        try:
            for request in requests:
                started = time.perf_counter()
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                status = int(head.split(b" ", 2)[1])
                if status != 202:
                    raise RuntimeError(f"{self._path} answered {status}")
                length = next(
                    int(line.split(b":")[1])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length")
                )
                await reader.readexactly(length)
                took.append((time.perf_counter() - started) * 1_000)
        finally:
            writer.close()
            await writer.wait_closed()
        return took

    async def together(self) -> tuple[float, list[float]]:
        """Requests per second of 16 clients, and each request's milliseconds."""
        started = time.perf_counter()
        lists = await asyncio.gather(*(self.deliver(TOGETHER // CLIENTS) for _ in range(CLIENTS)))
        return TOGETHER / (time.perf_counter() - started), [one for took in lists for one in took]


def run() -> list[Result]:
    return asyncio.run(measure())


async def measure() -> list[Result]:
    async with stack.running_on_disk("--no-agent") as up:
        secret = up.base / "secret"
        secret.write_bytes(SECRET)
        await up.run_admin("source", "add", "github", "--name", "bench", "--secret-file", str(secret))
        port = urlsplit(up.url).port
        assert port
        ours = Target(port, "/webhook/bench")
        async with floor(up.database_url()) as floor_port:
            bare = Target(floor_port, "/")
            alone: list[tuple[Target, list[float]]] = [(ours, []), (bare, [])]
            rates: list[tuple[Target, list[float]]] = [(ours, []), (bare, [])]
            waits: list[tuple[Target, list[float]]] = [(ours, []), (bare, [])]
            for target in (ours, bare):
                await target.deliver(50)
                await target.together()
            for _ in range(ROUNDS):
                for target, found in alone:
                    await drained(up)
                    found += await target.deliver(ALONE)
                for place, (target, found) in enumerate(rates):
                    await drained(up)
                    rate, took = await target.together()
                    found.append(rate)
                    waits[place][1].extend(took)
    floor_name = "bare ASGI app"
    p99 = [[percentile(found, 0.99)] for _, found in waits]
    return [
        compare("webhook_ack_ms_c1", alone[0][1], floor_name, alone[1][1], limit=2),
        compare("webhook_rps_c16", rates[0][1], floor_name, rates[1][1], limit=0.8, unit="/s", at_least=True),
        compare("webhook_ack_p99_ms_c16", p99[0], floor_name, p99[1], limit=2),
    ]


async def drained(up: Stack) -> None:
    """Wait until every event has been worked on."""
    db = await asyncpg.connect(up.database_url())
    try:
        async with asyncio.timeout(120):
            while await db.fetchval("select exists (select from event_log where processed_at is null)"):
                await asyncio.sleep(0.1)
    finally:
        await db.close()


@contextlib.asynccontextmanager
async def floor(database: str) -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.bench.floor_app", str(listener.fileno())),
            pass_fds=(listener.fileno(),),
            env=os.environ | {"FLOOR_DATABASE_URL": database},
        )
        try:
            yield listener.getsockname()[1]
        finally:
            process.terminate()
            await process.wait()
