"""What the pipeline is made of, and the protocols by which it knows other parts."""

from __future__ import annotations

from typing import Protocol

from asyncpg import Pool, Record
from msgspec import Struct

from kici.engine.changed import Changed, Deciding
from kici.forges.git.refs import Resolved
from kici.forges.git.remote import Remote
from kici.orchestrator.pipeline.lock_files import LockFiles
from kici.orchestrator.pipeline.subjects import Sources
from kici.orchestrator.pipeline.unservable import Labels


class ReadsRepositories(Protocol):
    """The part of git that the pipeline needs beside the lock files. Both raise a `GitError` for an outage."""

    async def settle(self, remote: Remote, deciding: Deciding) -> Changed: ...

    async def resolve(self, remote: Remote, ref: str) -> Resolved | None: ...


class Parts(Struct, frozen=True):
    pool: Pool[Record]
    sources: Sources
    repositories: ReadsRepositories
    lock_files: LockFiles
    labels: Labels | None = None
    """What is known of labels, and what becomes of a job that wants another one."""
