"""`/health` says that the process answers; `/ready` that it can work."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import structlog
from asyncpg import Pool, Record
from litestar import Response, get

from kici.orchestrator.errors import Unavailable
from kici.orchestrator.store.database import transaction
from kici.wire.api import Health, Readiness

log = structlog.get_logger(__name__)


def routes(pool: Pool[Record], lease_valid: Callable[[], bool], *, instance: str, version: str) -> list[Any]:
    began = time.monotonic()

    @get("/health", sync_to_thread=False, tags=["diagnostics"])
    def health() -> Health:
        """The process answers."""
        return Health(
            status="ok",
            timestamp=datetime.now(UTC),
            uptime=round(time.monotonic() - began, 3),
            version=version,
            instance_id=instance,
        )

    @get("/ready", tags=["diagnostics"])
    async def ready() -> Response[Readiness]:
        """It can work: the database answers, and this coordinator's lease holds. Else 503."""
        checks = {"database": await _answers(pool), "lease": lease_valid()}
        good = all(checks.values())
        return Response(Readiness("ready" if good else "not ready", checks), status_code=200 if good else 503)

    return [health, ready]


async def _answers(pool: Pool[Record]) -> bool:
    try:
        async with transaction(pool) as db:
            await db.fetchval("select key from cluster_meta limit 1", timeout=1)
    except Unavailable as error:
        log.debug("not ready", error=str(error))
        return False
    return True
