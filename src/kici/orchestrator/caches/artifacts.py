"""Artifacts of a run: streamed into the object store, then made visible by a row that is fenced by the attempt."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterable, AsyncIterator

import structlog
from asyncpg import Pool, Record

from kici.orchestrator.caches.meter import Meter, OverLimit
from kici.orchestrator.errors import AttemptOver, Conflict, Invalid, NotFound, OrchestratorError, TooLarge
from kici.orchestrator.objects import keys
from kici.orchestrator.objects.contract import Objects
from kici.orchestrator.store import artifacts
from kici.orchestrator.store.artifacts import Added, Artifact, Over, Taken
from kici.orchestrator.store.database import transaction

log = structlog.get_logger(__name__)

MAX_BYTES = 1024 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ +@=,()-]{0,199}")


class Artifacts:
    def __init__(self, pool: Pool[Record], objects: Objects, *, max_bytes: int = MAX_BYTES) -> None:
        self._pool = pool
        self._objects = objects
        self._max_bytes = max_bytes

    async def upload(
        self,
        run_id: str,
        job_id: str,
        attempt: int,
        name: str,
        data: AsyncIterable[bytes],
        *,
        length: int | None = None,
    ) -> Artifact:
        """Store what the current attempt of a job made. The same upload sent twice is one.

        `length` is what the sender announced, so that what is too large is refused before it is read. Raises `Invalid`
        (name), `TooLarge`, `Conflict` (the run has that name already), `AttemptOver`.
        """
        check_name(name)
        if length is not None and length > self._max_bytes:
            raise self._too_large(name)
        async with transaction(self._pool) as db:
            taken = await artifacts.find(db, run_id, name)
        if taken is not None and taken.job_id != job_id:
            raise _conflict(taken)
        key = keys.artifact(run_id, name, job_id, attempt, uuid.uuid4().hex)
        meter = Meter(data, self._max_bytes)
        try:
            await self._objects.put(key, meter)
            async with transaction(self._pool) as db:
                outcome = await artifacts.add(
                    db,
                    job_id=job_id,
                    attempt=attempt,
                    name=name,
                    object_key=key,
                    size_bytes=meter.size,
                    sha256=meter.digest.hexdigest(),
                )
                stored = await artifacts.find(db, run_id, name)
        except OverLimit:
            raise self._too_large(name) from None
        match outcome:
            case Added(replaced_key=replaced):
                if replaced:
                    await self._forget(replaced)
            case Taken(by=by):
                await self._forget(key)
                same = (by.job_id, by.attempt, by.sha256) == (job_id, attempt, meter.digest.hexdigest())
                if not same:
                    raise _conflict(by)
            case Over():
                await self._forget(key)
                raise AttemptOver(
                    f"artifact {name!r} was not kept: attempt {attempt} of this job is over, or another has begun"
                )
        assert stored is not None
        return stored

    async def find(self, run_id: str, name: str) -> Artifact:
        """Raises `NotFound` with the names that there are."""
        check_name(name)
        async with transaction(self._pool) as db:
            found = await artifacts.find(db, run_id, name)
            others = [] if found else await artifacts.of_run(db, run_id, 20)
        if found is None:
            names = ", ".join(repr(other.name) for other in others) or "none"
            raise NotFound(f"the run has no artifact {name!r}; it has: {names}")
        return found

    async def of_run(self, run_id: str) -> list[Artifact]:
        async with transaction(self._pool) as db:
            return await artifacts.of_run(db, run_id)

    def read(self, artifact: Artifact) -> AsyncIterator[bytes]:
        return self._objects.read(artifact.object_key)

    async def _forget(self, key: str) -> None:
        """Nobody can reach the object: a failure costs space, not correctness."""
        try:
            await self._objects.delete(key)
        except OrchestratorError as error:
            log.warning("an unused artifact object could not be removed", key=key, error=str(error))

    def _too_large(self, name: str) -> TooLarge:
        return TooLarge(
            f"artifact {name!r} is larger than {self._max_bytes:,} bytes: split it, or leave out what can be made again"
        )


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name != name.rstrip(". "):
        raise Invalid(
            f"{name[:200]!r} cannot be the name of an artifact: write 1 to 200 letters, digits, blanks and any of"
            " . _ - + @ = , ( )"
        )


def _conflict(taken: Artifact) -> Conflict:
    return Conflict(
        f"the run has an artifact {taken.name!r} already, made by job {taken.job_name!r}:"
        " names are unique in a run (add the matrix value to the name)"
    )
