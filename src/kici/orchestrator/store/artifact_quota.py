"""How many bytes the artifacts of a repository take in the object store, or may take once what is being sent is there.

Objects that are shared by the rows of several runs count once, and until they are gone. An upload session counts with
the parts that it was granted until it is published or its objects are gone.
"""

from __future__ import annotations

from msgspec import Struct

from kici.orchestrator.store.caches import Owner
from kici.orchestrator.store.database import Db


class Bytes(Struct, frozen=True):
    total: int
    untrusted: int
    """Of it, what pull requests have that are not trusted."""
    pull_request: int
    """Of that, what the one has that was asked for."""


async def lock(db: Db, owner: Owner) -> None:
    """Until the transaction ends, nobody else is granted parts of an artifact of this repository, or publishes one."""
    await db.execute(
        "select pg_advisory_xact_lock(hashtextextended('artifacts ' || $1 || ' ' || $2, 0))",
        owner.routing_key,
        owner.repository,
    )


async def kept(db: Db, owner: Owner, pull_request: int | None) -> Bytes:
    row = await db.fetchrow(
        """
        select coalesce(sum(size_bytes), 0)::bigint as total,
               coalesce(sum(size_bytes) filter (where pull_request is not null), 0)::bigint as untrusted,
               coalesce(sum(size_bytes) filter (where pull_request = $3), 0)::bigint as pull_request
          from (select distinct on (object_key) size_bytes, pull_request from artifacts
                 where routing_key = $1 and repository = $2 and object_key <> '' order by object_key) a
        """,
        owner.routing_key,
        owner.repository,
        pull_request,
    )
    assert row
    return Bytes(**row)


async def sending(db: Db, owner: Owner, pull_request: int | None) -> Bytes:
    row = await db.fetchrow(
        """
        select coalesce(sum(granted), 0)::bigint as total,
               coalesce(sum(granted) filter (where pull_request is not null), 0)::bigint as untrusted,
               coalesce(sum(granted) filter (where pull_request = $3), 0)::bigint as pull_request
          from (select granted_parts::bigint * part_bytes as granted, pull_request from uploads
                 where routing_key = $1 and repository = $2 and kind = 'artifact' and state <> 'published') u
        """,
        owner.routing_key,
        owner.repository,
        pull_request,
    )
    assert row
    return Bytes(**row)


async def count(db: Db, run_id: str) -> int:
    """Artifacts of a run, those that have expired too."""
    return int(await db.fetchval("select count(*) from artifacts where run_id = $1", run_id))
