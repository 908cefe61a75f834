"""Artifacts of a run: what one job made, for the others and for people. `uploads` says how they come."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from asyncpg import Pool, Record

from kici.orchestrator.caches import artifact_limits, parts
from kici.orchestrator.caches.artifact_limits import Limits
from kici.orchestrator.caches.parts import Parts
from kici.orchestrator.caches.uploads import Outcome, Room
from kici.orchestrator.errors import AttemptOver, Conflict, Gone, Invalid, NotFound, TooLarge
from kici.orchestrator.objects import keys
from kici.orchestrator.store import artifacts, origins, uploads
from kici.orchestrator.store.artifacts import Added, Artifact, Taken
from kici.orchestrator.store.caches import Owner
from kici.orchestrator.store.database import Db, connection
from kici.orchestrator.store.origins import Origin
from kici.orchestrator.store.uploads import Upload

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ +@=,()-]{0,199}")


class Artifacts:
    name = "artifact"

    def __init__(self, pool: Pool[Record], stored: Parts, limits: Limits) -> None:
        self._pool = pool
        self._limits = limits
        self.parts = stored
        self.max_bytes = limits.max_bytes

    # ── as a kind of upload ──────────────────────────────────────────────────────────────────────────────────────────

    def check(self, name: str) -> None:
        if not _NAME.fullmatch(name) or name != name.rstrip(". "):
            raise Invalid(
                f"{name[:200]!r} cannot be the name of an artifact: write 1 to 200 letters, digits, blanks and any of"
                " . _ - + @ = , ( )"
            )

    async def refusal(self, db: Db, origin: Origin, name: str) -> str:
        """Raises `Conflict` if another job of the run has given that name, or the run has no room for one more."""
        taken = await artifacts.find(db, origin.run_id, name)
        if taken is not None and taken.job_id != origin.job_id:
            raise Conflict(_conflict(taken))
        if taken is None:
            await artifact_limits.check_count(db, origin.run_id, name, self._limits)
        return ""

    async def room(self, db: Db, upload: Upload) -> Room:
        return await artifact_limits.left(db, upload.owner, upload.pull_request, self._limits, sending=True)

    def object_key(self, origin: Origin, name: str, upload_id: str) -> str:
        return keys.artifact(origin.run_id, name, upload_id)

    async def publish(self, db: Db, upload: Upload, size: int, sha256: str) -> Outcome:
        """The same one sent twice is one; that of an older attempt of the same job gives way."""
        origin = await origins.hold(db, upload.job_id, upload.attempt)
        if origin is None:
            raise AttemptOver(
                f"artifact {upload.name!r} was not kept: attempt {upload.attempt} of this job is over, or another"
                " has begun"
            )
        owner = Owner(origin.routing_key, origin.repository)
        room = await artifact_limits.left(db, owner, origin.pull_request, self._limits, sending=False)
        before = await artifacts.find(db, origin.run_id, upload.name)
        if before is None or (before.job_id == upload.job_id and before.attempt < upload.attempt):
            if size > room.bytes:
                return Outcome(False, f"artifact {upload.name!r} of {size:,} bytes was refused: {room.full}")
            if before is None:
                try:
                    await artifact_limits.check_count(db, origin.run_id, upload.name, self._limits)
                except Conflict as refused:
                    return Outcome(False, str(refused))
        added = await artifacts.add(
            db,
            artifact_id=upload.id,
            owner=owner,
            pull_request=origin.pull_request,
            run_id=origin.run_id,
            job_id=upload.job_id,
            attempt=upload.attempt,
            name=upload.name,
            object_key=upload.object_key,
            size_bytes=size,
            part_bytes=upload.part_bytes,
            sha256=sha256,
        )
        match added:
            case Added(replaced=replaced):
                if replaced is not None and replaced.object_key:
                    await uploads.leave(db, replaced, parts.STALE_AFTER)
                return Outcome(True)
            case Taken(by=by):
                same = (by.job_id, by.attempt, by.sha256) == (upload.job_id, upload.attempt, sha256)
                return Outcome(same, "" if same else _conflict(by), published=False)

    def too_large(self, name: str) -> TooLarge:
        return TooLarge(
            f"artifact {name!r} is larger than {self.max_bytes:,} bytes: split it, or leave out what can be made again"
            " (KICI_ARTIFACT_MAX_BYTES)"
        )

    def ended(self, outcome: Outcome) -> None:
        """Raises `Conflict`: an artifact that is not kept is an error."""
        if not outcome.kept:
            raise Conflict(outcome.reason)

    # ── for readers ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def find(self, run_id: str, name: str) -> Artifact:
        """Raises `NotFound` with the names that there are, or `Gone`."""
        self.check(name)
        async with connection(self._pool) as db:
            found = await artifacts.find(db, run_id, name)
            others = [] if found else await artifacts.of_run(db, run_id, 20)
        if found is None:
            names = ", ".join(repr(other.name) for other in others if other.expired_at is None) or "none"
            raise NotFound(f"the run has no artifact {name!r}; it has: {names}")
        if found.expired_at is not None:
            raise Gone(
                f"artifact {name!r} expired on {found.expired_at:%Y-%m-%d}: it was made on"
                f" {found.created_at:%Y-%m-%d}, and artifacts are kept for a limited time; run its job again"
            )
        return found

    async def by_id(self, run_id: str, artifact_id: str) -> Artifact:
        """Raises `NotFound`: it may have given way to that of a later attempt."""
        async with connection(self._pool) as db:
            found = await artifacts.by_id(db, run_id, artifact_id)
        if found is None:
            raise NotFound(f"the run has no artifact {artifact_id} any more")
        return found

    async def of_run(self, run_id: str) -> list[Artifact]:
        async with connection(self._pool) as db:
            return await artifacts.of_run(db, run_id)

    def read(self, artifact: Artifact) -> AsyncIterator[bytes]:
        return self.parts.read(artifact)


def _conflict(taken: Artifact) -> str:
    return (
        f"the run has an artifact {taken.name!r} already, made by job {taken.job_name!r}:"
        " names are unique in a run (add the matrix value to the name)"
    )
