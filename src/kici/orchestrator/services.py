"""What runs for the life of the process, and in which order it stops.

A service is an object with `run`, which goes on until it is cancelled. Services stand in stages: a stage starts after
the one before it, and all of it has stopped before the one before it is stopped. So the HTTP server is gone before
the writers that it feeds, and these before the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog
from prometheus_client import Counter

from kici.orchestrator.store.database import is_away, is_transient

log = structlog.get_logger(__name__)

FAILURES = Counter("kici_service_failures_total", "How often a service failed and was started again", ["service"])
PAUSE_S = (0.1, 5.0)
"""Between a failure and the next start: at first, and at most."""


class Service(Protocol):
    async def run(self) -> None:
        """Work until cancelled."""


class Stage:
    """Some services that start and stop together. One that fails is started again; the others do not notice."""

    def __init__(self, name: str, services: Sequence[Service]) -> None:
        self.name = name
        self.services = services

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for service in self.services:
                tasks.create_task(supervise(service), name=f"{self.name}: {type(service).__name__}")


async def run_stages(stages: Sequence[Stage]) -> None:
    """Run all until cancelled, then stop them stage by stage, the last one first.

    Cancelled again, it waits no longer for the stage that is just stopping.
    """
    if not stages:
        await asyncio.Event().wait()
    stage = asyncio.create_task(stages[0].run(), name=stages[0].name)
    try:
        await run_stages(stages[1:])
    finally:
        stage.cancel()
        await asyncio.wait([stage])
        log.debug("stopped a stage", stage=stages[0].name)


async def supervise(service: Service, *, passes: type[Exception] | tuple[type[Exception], ...] = ()) -> None:
    """Run a service; start it again when it fails, with growing pauses. What `passes` names is no failure."""
    loop = asyncio.get_running_loop()
    name = type(service).__name__
    pause = PAUSE_S[0]
    while True:
        began = loop.time()
        try:
            await service.run()
            log.error("a service ended by itself: starting it again", service=name)
        except passes:
            raise
        except Exception as error:
            if is_away(error):
                log.warning("a service lost the database: starting it again", service=name, error=repr(error))
            elif is_transient(error):
                log.warning("a service's transaction was refused: starting it again", service=name, error=repr(error))
            else:
                log.exception("a service failed: starting it again", service=name)
        FAILURES.labels(name).inc()
        if loop.time() - began > 60:
            pause = PAUSE_S[0]
        await asyncio.sleep(pause)
        pause = min(pause * 2, PAUSE_S[1])
