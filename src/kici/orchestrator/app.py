"""The composition root of a coordinator: reads from top to bottom as the list of what runs."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import timedelta

import structlog

from kici import __version__
from kici.orchestrator import http
from kici.orchestrator.announcement import Announcement
from kici.orchestrator.cluster.coordinator_lease import CoordinatorLease
from kici.orchestrator.diagnostics import health, metrics
from kici.orchestrator.identity.bootstrap import bootstrap
from kici.orchestrator.services import Stage, run_stages
from kici.orchestrator.settings import Settings
from kici.orchestrator.store import database, migrate
from kici.orchestrator.store.embedded import EmbeddedPostgres
from kici.orchestrator.store.notify import Listener, Notifier

log = structlog.get_logger(__name__)


async def serve(settings: Settings) -> None:
    """Run a coordinator until cancelled. Raises `KiciError` where it cannot start."""
    async with AsyncExitStack() as ends:
        # ── the address comes first: where it is taken, nothing else has to be undone
        listening_socket = ends.enter_context(http.listen(settings.host, settings.port, settings.listen_fd))
        public_url = settings.public_url or http.address(listening_socket)

        # ── the database
        embedded = None if settings.database_url else EmbeddedPostgres(settings.data_dir / "postgres")
        if embedded is not None:
            ends.push_async_callback(embedded.stop)
            await embedded.start()
        url = settings.database_url if embedded is None else embedded.url
        direct_url = settings.database_listen_url or url
        await database.reachable(direct_url)
        await migrate.ensure(direct_url, auto=settings.auto_migrate)
        pool = await database.create_pool(url, settings.database_pool_size, pooler=direct_url != url)
        ends.callback(pool.terminate)

        # ── what the parts share
        notifier = Notifier(pool)
        listener = Listener(direct_url)
        ttl = timedelta(seconds=settings.coordinator_lease_s)
        lease = CoordinatorLease(pool, settings.instance_id, ttl, version=__version__, url=public_url)
        async with pool.acquire() as db, db.transaction():
            await bootstrap(db, settings)
        await lease.run_once()
        ends.push_async_callback(lease.leave)

        # ── what is served
        routes = [
            *health.routes(pool, lease.valid, instance=settings.instance_id, version=__version__),
            *metrics.routes(),
        ]
        server = http.HttpServer(http.application(routes, base_path=settings.base_path), listening_socket)

        # ── what runs, from the ground up; it stops in the opposite order
        await run_stages(
            [
                Stage("database", [embedded] if embedded is not None else []),
                Stage("coordination", [notifier, listener, lease]),
                Stage("work", []),
                Stage("front", [server, Announcement(server.listening, settings.data_dir, public_url)]),
            ]
        )
