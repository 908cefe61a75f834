"""Takes in the pushes to a local repository that its hook could not deliver: the orchestrator was away, or busy."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import structlog
from msgspec import Struct

from kici.forges.contract import Unreadable
from kici.forges.local import delivery, spool
from kici.orchestrator.errors import Unavailable
from kici.orchestrator.intake.accept import Accepted, Intake
from kici.orchestrator.intake.body import Body
from kici.orchestrator.intake.sources import Sources
from kici.orchestrator.pace import Pace

log = structlog.get_logger(__name__)


class Settings(Struct, frozen=True):
    source: str
    """Name of the internal source."""
    directory: Path
    interval: timedelta = timedelta(seconds=30)


class Pass(Struct, frozen=True):
    accepted: int = 0
    duplicates: int = 0
    """The hook had delivered them, and was killed before it could remove the file."""
    refused: int = 0
    left: int = 0
    """For the next pass: the database is away."""


class DrainSpool:
    """Every coordinator on the repository's machine may run it: what two of them take in is one row."""

    def __init__(
        self,
        intake: Intake,
        sources: Sources,
        settings: Settings,
        *,
        on_pass: Callable[[Pass], None] = lambda done: None,
    ) -> None:
        self._intake = intake
        self._sources = sources
        self._settings = settings
        self._on_pass = on_pass

    async def run(self) -> None:
        async for _ in Pace(self._settings.interval):
            self._on_pass(await self.run_once())

    async def run_once(self) -> Pass:
        """A file goes only after its row is committed, or is set aside if it can never be one."""
        source = self._sources.by_name(self._settings.source)
        waiting = list(spool.waiting(self._settings.directory))
        if source is None or not waiting:
            return Pass(left=len(waiting))
        accepted = duplicates = refused = 0
        for kept in waiting:
            try:
                body = Body(kept.file.read_bytes())
                outcome = await self._intake.store(source, delivery.headers(kept.delivery_id), body)
            except FileNotFoundError:
                continue
            except Unavailable as error:
                log.warning(
                    "deliveries wait in the spool of a local repository", reason=str(error), waiting=len(waiting)
                )
                break
            except Unreadable as error:
                refused += 1
                log.error("set a delivery aside", file=str(spool.set_aside(kept)), reason=str(error))
                continue
            spool.remove(kept)
            accepted += isinstance(outcome, Accepted)
            duplicates += not isinstance(outcome, Accepted)
        if accepted:
            log.info("took in pushes from the spool of a local repository", accepted=accepted)
        return Pass(accepted, duplicates, refused, len(list(spool.waiting(self._settings.directory))))
