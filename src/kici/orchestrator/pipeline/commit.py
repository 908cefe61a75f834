"""Writes what processing an event gave: registrations, runs and the end of the event, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import structlog
from asyncpg import Pool, Record
from msgspec import Struct
from msgspec.structs import replace

from kici.orchestrator.pipeline import results
from kici.orchestrator.pipeline.emitted import MAX_PER_MINUTE
from kici.orchestrator.pipeline.results import Planned, Result
from kici.orchestrator.pipeline.unservable import Labels, check
from kici.orchestrator.store import caused, event_claims, registrations, runs
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.event_claims import Claim, Ended
from kici.orchestrator.store.known_labels import KnownLabels

log = structlog.get_logger(__name__)

TWIN_WINDOW = timedelta(minutes=10)


class Notifies(Protocol):
    def send(self, channel: str, key: str = "") -> None: ...


class Wakes(Protocol):
    def send(self, notifier: Notifies) -> None:
        """To be called after the commit."""


class SettlesRuns(Protocol):
    """The part of lifecycle that is needed here."""

    async def __call__(self, db: Db, run_ids: Sequence[str]) -> Wakes:
        """Start what may start of new runs, in the transaction that makes them; all of them at once."""


class Written(Struct, frozen=True):
    ended: Ended
    run_ids: Sequence[str]
    """Of the runs that are new."""
    wakes: Wakes


class Writer:
    def __init__(
        self,
        pool: Pool[Record],
        settle: SettlesRuns,
        labels: Labels | None = None,
        *,
        per_minute: int = MAX_PER_MINUTE,
    ) -> None:
        """`per_minute`: so many events of one workflow may start runs in a minute of the clock."""
        self._pool = pool
        self._settle = settle
        self._labels = labels or Labels(KnownLabels())
        self._per_minute = per_minute

    async def write(self, claim: Claim, result: Result) -> Written:
        """Raises `ClaimLost`, and nothing is written, if the event has passed to somebody else.

        Runs that the event has already (it is processed a second time) are left as they are.
        """
        async with self._pool.acquire() as db, db.transaction():
            await event_claims.guard(db, claim)
            result = await _within_bounds(db, claim, result, self._per_minute)
            warnings = list(result.ended.warnings)
            if result.registering is not None:
                new = result.registering
                if not await registrations.replace(db, new.repository, new.commit_sha, new.workflows, new.pushed_at):
                    warnings.append("a later push has set the registrations of the default branch already")
            made, twins, unservable = await self._make(db, result.runs)
            wakes = await self._settle(db, made)
            ended = _ended(replace(result.ended, warnings=[*warnings, *twins, *unservable]), made, twins)
            await event_claims.end(db, claim, ended)
        return Written(ended, made, wakes)

    async def _make(self, db: Db, planned: Sequence[Planned]) -> tuple[list[str], list[str], list[str]]:
        """Ids of the new runs, a sentence for each that exists already through another source, and one for each new job
        that nothing here could run."""
        made: list[str] = []
        twins: list[str] = []
        unservable: list[str] = []
        for repo, sha in sorted({(one.run.repo, one.run.sha) for one in planned if one.may_have_twin}):
            await runs.lock_commit(db, repo, sha)
        for one in planned:
            run = one.run
            twin = await runs.find_twin(db, run, TWIN_WINDOW) if one.may_have_twin else None
            if twin is not None:
                twins.append(
                    f"{run.workflow_name}: run {twin.run_id} has built {run.sha[:12]} already, the source"
                    f" {twin.routing_key} told of it too: remove one of the two hooks"
                )
                continue
            jobs, told = await check(db, self._labels, one.jobs)
            if await runs.create(db, run, jobs):
                made.append(run.run_id)
                unservable += [f"{run.workflow_name}: {sentence}" for sentence in told]
                for sentence in told:
                    log.warning("a new run has a job that nothing here could run", run=run.run_id, reason=sentence)
        return made, twins, unservable


async def _within_bounds(db: Db, claim: Claim, result: Result, per_minute: int) -> Result:
    """Without its runs, and failed, if the workflow whose event it is has started too many of late. The lock is kept
    until the runs are there, so no two coordinators count the same."""
    if result.cause is None or not result.runs:
        return result
    await caused.lock(db, result.cause)
    count = await caused.in_minute_of(db, result.cause, claim.received_at)
    if count < per_minute:
        return result
    refused = (
        f"it started nothing: {per_minute} events of workflow {result.cause.workflow!r} have started runs in this"
        f" minute ({claim.received_at:%H:%M} UTC), and that is the limit: emit one event with a list, or less often"
    )
    return results.ends("failed", refused, repo=result.ended.repo)


def _ended(ended: Ended, made: Sequence[str], twins: Sequence[str]) -> Ended:
    if twins and len(twins) == ended.matched:
        return replace(ended, status="duplicate", message=twins[0])
    return replace(ended, run_id=made[0] if made else None)
