"""What an operator has set for the queue: pauses, and caps of repositories. Both tables are small and read whole."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from msgspec import Struct

from kici.orchestrator.store.database import Db


class Pause(Struct, frozen=True):
    scope: str
    """`all`, `repository` or `label`"""
    value: str
    """The repository or the label, as agents offer it."""
    reason: str
    created_by: str
    created_at: datetime

    def holds(self, repository: str, labels: Collection[str]) -> bool:
        """Whether nothing is claimed of this repository that wants these labels. As `lanes.claim` says it in SQL."""
        if self.scope == "all":
            return True
        return self.value in labels if self.scope == "label" else self.value == repository


class Cap(Struct, frozen=True):
    repository: str
    max_running: int
    created_by: str
    created_at: datetime


async def pauses(db: Db) -> list[Pause]:
    rows = await db.fetch("select scope, value, reason, created_by, created_at from queue_pauses order by id")
    return [Pause(**row) for row in rows]


async def pause(db: Db, scope: str, value: str, *, reason: str, by: str) -> None:
    """What is paused already gets the new reason."""
    await db.execute(
        """
        insert into queue_pauses (scope, value, reason, created_by) values ($1, $2, $3, $4)
        on conflict (scope, value) do update set reason = excluded.reason, created_by = excluded.created_by
        """,
        scope,
        value,
        reason,
        by,
    )


async def resume(db: Db, scope: str, value: str) -> bool:
    """False: it was not paused."""
    return bool(
        await db.fetchval("delete from queue_pauses where scope = $1 and value = $2 returning true", scope, value)
    )


async def caps(db: Db) -> list[Cap]:
    rows = await db.fetch(
        "select repository, max_running, created_by, created_at from repository_caps order by repository"
    )
    return [Cap(**row) for row in rows]


async def set_cap(db: Db, repository: str, max_running: int, *, by: str) -> None:
    await db.execute(
        """
        insert into repository_caps (repository, max_running, created_by) values ($1, $2, $3)
        on conflict (repository) do update set max_running = excluded.max_running, created_by = excluded.created_by
        """,
        repository,
        max_running,
        by,
    )


async def remove_cap(db: Db, repository: str) -> bool:
    """False: it had none of its own."""
    return bool(await db.fetchval("delete from repository_caps where repository = $1 returning true", repository))


async def running(db: Db, repositories: Collection[str]) -> dict[str, int]:
    """Repository → jobs that were sent to an agent and have not ended. Those that have none are missing."""
    rows = await db.fetch(
        """
        select repository, count(*) as running from dispatch_queue
         where session_id is not null and repository = any($1::text[]) group by repository
        """,
        sorted(repositories),
    )
    return {row["repository"]: row["running"] for row in rows}
