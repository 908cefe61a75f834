"""The routes behind a real server on a free port, with real tokens."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator import http
from kici.orchestrator.api import (
    agents,
    artifacts,
    caches,
    downloads,
    emit,
    event_log,
    job_context,
    logs,
    queue,
    rerun,
    runs,
    secret_outputs,
    stream,
    uploads,
    workflows,
)
from kici.orchestrator.caches import artifact_limits
from kici.orchestrator.caches.artifacts import Artifacts
from kici.orchestrator.caches.entries import Caches, Limits
from kici.orchestrator.caches.parts import Parts as StoredParts
from kici.orchestrator.caches.uploads import Uploads
from kici.orchestrator.dispatch.orders import Place
from kici.orchestrator.identity.access import Access
from kici.orchestrator.identity.tokens import digest
from kici.orchestrator.logs.compact import CompactLogs
from kici.orchestrator.logs.compact import Settings as CompactSettings
from kici.orchestrator.logs.reader import LogReader
from kici.orchestrator.logs.tail import RunFeed
from kici.orchestrator.logs.writer import LogWriter
from kici.orchestrator.objects.contract import Objects
from kici.orchestrator.objects.open_objects import open_objects
from kici.orchestrator.secrets.job_outputs import SecretOutputs
from kici.orchestrator.secrets.key_ring import KeyRing
from kici.orchestrator.services import Stage, run_stages
from kici.orchestrator.settings import Settings
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.notify import Listener, Notifier

TOKENS = {role: f"{number:064x}" for number, role in enumerate(("owner", "admin", "auditor", "developer"), 1)}
JOB_TOKEN = "kjt_" + "7" * 64


class Cancelled(Struct):
    status: str
    cancelled_jobs: int
    wakes: Any


class Lifecycle:
    """Stands for the lifecycle and the dispatcher: keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str, bool]] = []
        self.reasons: dict[str, str] = {}

    async def cancel_run(self, db: Db, run_id: str, *, by: str, reason: str, force: bool) -> Cancelled:
        self.asked.append((run_id, by, reason, force))
        return Cancelled("cancelling", 2, _NoWakes())

    async def explain(self, db: Db, job_ids: Sequence[str]) -> dict[str, str]:
        return {job_id: self.reasons[job_id] for job_id in job_ids if job_id in self.reasons}


class _NoWakes:
    def send(self, notifier: Any) -> None:
        pass


class Parts(Struct):
    objects: Objects
    writer: LogWriter
    notifier: Notifier
    compactor: CompactLogs
    feed: RunFeed
    lifecycle: Lifecycle
    url: str


def client(url: str, token: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=20, trust_env=False)


@asynccontextmanager
async def serve(
    pool: Pool[Record], database_url: str, folder: Path, *, storage: Settings | None = None, tokens: bool = True
) -> AsyncIterator[Parts]:
    """`storage`: where objects lie; by default in `folder`. `tokens`: of people, which the first server makes."""
    for role, token in TOKENS.items() if tokens else ():
        await pool.execute(
            "insert into admin_tokens (token_hash, label, role) values ($1, $2, $2)", digest(token), role
        )
    objects = open_objects(storage or Settings(storage_fs_path=folder / "objects"))
    access, notifier, listener, lifecycle = Access(pool), Notifier(pool), Listener(database_url), Lifecycle()
    stored = StoredParts(objects, direct=True)
    artifact_store = Artifacts(pool, stored, artifact_limits.Limits(max_bytes=20_000_000))
    cache_store = Caches(pool, stored, Limits(quota_bytes=20_000_000))
    writer = LogWriter(pool, notifier)
    outputs = SecretOutputs(KeyRing({1: bytes(32)}))
    compactor = CompactLogs(pool, objects, listener, notifier, CompactSettings())
    feed = RunFeed(listener)
    streams = stream.RunStream(pool, objects, feed, lifecycle.explain, stream.Settings(poll_s=30, logs_s=0.3))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        server = http.HttpServer(
            http.application(
                [
                    *runs.routes(pool, access, notifier, cancel_run=lifecycle.cancel_run, explain=lifecycle.explain),
                    *rerun.routes(access, pool, notifier),
                    *logs.routes(access, LogReader(pool, objects)),
                    *stream.routes(access, streams),
                    *queue.routes(pool, access, explain=lifecycle.explain),
                    *agents.routes(pool, access),
                    *workflows.routes(pool, access),
                    *event_log.routes(pool, access),
                    *artifacts.routes(pool, access, artifact_store),
                    *caches.routes(pool, access, cache_store),
                    *uploads.routes(access, Uploads(pool, stored, [artifact_store, cache_store])),
                    *downloads.routes(access, stored, artifact_store, cache_store),
                    *emit.routes(pool, access, notifier),
                    *job_context.routes(pool, access, Place("http://kici.test"), outputs),
                    *secret_outputs.routes(pool, access, outputs),
                ]
            ),
            listening,
        )
        stages = [Stage("coordination", [notifier, listener, writer]), Stage("front", [server, feed])]
        running = asyncio.create_task(run_stages(stages))
        try:
            async with asyncio.timeout(20):
                await server.listening.wait()
                while not listener.connections:
                    await asyncio.sleep(0.01)
            yield Parts(objects, writer, notifier, compactor, feed, lifecycle, http.address(listening))
        finally:
            running.cancel()
            async with asyncio.timeout(20):
                await asyncio.wait([running])
