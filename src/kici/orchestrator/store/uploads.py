"""Upload sessions: what an attempt may send, and what becomes of the objects that it has sent.

A session is open until it is published or over. Its row stays a while, so that a question that is asked twice has one
answer; the objects of one that is not published go with it.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from msgspec import Struct

from kici.orchestrator.store.artifacts import Replaced
from kici.orchestrator.store.caches import Owner
from kici.orchestrator.store.database import Db

OPEN, PUBLISHED, OVER = "open", "published", "over"
TOO_LONG = "it took too long"


class Upload(Struct, frozen=True):
    id: str
    run_id: str
    job_id: str
    attempt: int
    kind: str
    """`artifact` or `cache`."""
    name: str
    """Of the artifact, or the key of the cache entry."""
    object_key: str
    part_bytes: int
    state: str = OPEN
    reason: str = ""
    """Why it is over, in words; empty where what it sent is kept already."""
    routing_key: str = ""
    repository: str = ""
    pull_request: int | None = None
    """Of a run that is not trusted."""
    granted_parts: int = 0
    """It may send parts 0 to so many."""

    @property
    def owner(self) -> Owner:
        return Owner(self.routing_key, self.repository)


async def begin(db: Db, upload: Upload, lasts: timedelta) -> None:
    await db.execute(
        """
        insert into uploads (id, run_id, job_id, attempt, kind, name, object_key, part_bytes, expires_at, routing_key,
                             repository, pull_request, granted_parts)
        values ($1, $2, $3, $4, $5, $6, $7, $8, now() + $9::interval, $10, $11, $12, $13)
        """,
        upload.id,
        upload.run_id,
        upload.job_id,
        upload.attempt,
        upload.kind,
        upload.name,
        upload.object_key,
        upload.part_bytes,
        lasts,
        upload.routing_key,
        upload.repository,
        upload.pull_request,
        upload.granted_parts,
    )


async def find(db: Db, upload_id: str, job_id: str, attempt: int) -> Upload | None:
    """The session, if it is this attempt's. One past its time is over."""
    return await _fetch(db, _FIND, upload_id, job_id, attempt)


async def hold(db: Db, upload_id: str, job_id: str, attempt: int) -> Upload | None:
    """The same, locked: until the transaction ends nobody else ends it."""
    return await _fetch(db, f"{_FIND} for update", upload_id, job_id, attempt)


_FIND = f"""
  select id, run_id, job_id, attempt, kind, name, object_key, part_bytes,
         case when state = 'open' and expires_at < now() then 'over' else state end as state,
         case when state = 'open' and expires_at < now() then '{TOO_LONG}' else reason end as reason,
         routing_key, repository, pull_request, granted_parts
    from uploads where id = $1 and job_id = $2 and attempt = $3
"""  # noqa: S608 - a constant


async def _fetch(db: Db, statement: str, *args: object) -> Upload | None:
    row = await db.fetchrow(statement, *args)
    return None if row is None else Upload(**row)


async def grant(db: Db, upload_id: str, granted_parts: int) -> None:
    """It may send so many parts, which were fewer. The caller holds it."""
    await db.execute("update uploads set granted_parts = $2 where id = $1", upload_id, granted_parts)


async def unpublished(db: Db, job_id: str) -> int:
    """How many sessions of a job have objects that nobody can find."""
    return int(await db.fetchval("select count(*) from uploads where job_id = $1 and state <> 'published'", job_id))


async def sending(db: Db, job_id: str, kind: str) -> int:
    """Bytes that a job's sessions of one kind may send or have sent, as long as nothing of them is published."""
    return int(
        await db.fetchval(
            """
            select coalesce(sum(granted_parts::bigint * part_bytes), 0) from uploads
             where job_id = $1 and kind = $2 and state <> 'published'
            """,
            job_id,
            kind,
        )
    )


async def end(db: Db, upload_id: str, state: str, reason: str, keep: timedelta) -> bool:
    """Close an open session as `state`; what it has left goes after `keep`. False: it was closed before."""
    done = await db.execute(
        """
        update uploads set state = $2, reason = $3, expires_at = now() + $4::interval where id = $1 and state = 'open'
        """,
        upload_id,
        state,
        reason,
        keep,
    )
    return bool(done == "UPDATE 1")


async def leave(db: Db, replaced: Replaced, keep: timedelta) -> None:
    """The objects of an artifact that has given way go after `keep`. A job has so few attempts that they count no more
    in the meantime."""
    await db.execute(
        """
        insert into uploads
          (id, run_id, job_id, attempt, kind, name, object_key, part_bytes, state, reason, expires_at)
        values ($1, $2, $3, $4, 'artifact', $5, $6, $7, 'over', 'a later attempt replaced it', now() + $8::interval)
        on conflict (id) do update
          set state = excluded.state, reason = excluded.reason, expires_at = excluded.expires_at, granted_parts = 0
        """,
        replaced.id,
        replaced.run_id,
        replaced.job_id,
        replaced.attempt,
        replaced.name,
        replaced.object_key,
        replaced.part_bytes,
        keep,
    )


async def expire(db: Db, keep: timedelta, batch: int) -> int:
    """Close what has been open for too long. Returns how many."""
    done = await db.execute(
        """
        update uploads set state = 'over', reason = $3, expires_at = now() + $1::interval
         where id in (select id from uploads where state = 'open' and expires_at < now()
                       order by expires_at limit $2 for update skip locked)
        """,
        keep,
        batch,
        TOO_LONG,
    )
    return int(done.removeprefix("UPDATE "))


class Leftover(Struct, frozen=True):
    id: str
    object_key: str
    part_bytes: int | None
    published: bool
    """Its objects stay: somebody else's row names them."""


async def leftovers(db: Db, batch: int) -> list[Leftover]:
    """What can go, the oldest first."""
    rows = await db.fetch(
        """
        select id, object_key, part_bytes, state = 'published' as published from uploads
         where state <> 'open' and expires_at < now() order by expires_at limit $1
        """,
        batch,
    )
    return [Leftover(**row) for row in rows]


async def forget(db: Db, upload_ids: Collection[str]) -> None:
    """Their objects are gone, or somebody else's."""
    await db.execute("delete from uploads where id = any($1::uuid[]) and state <> 'open'", sorted(upload_ids))
