"""Secrets at rest. What passes through here is encrypted already; nothing here can read it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from kici.orchestrator.store.database import Db


class SealedSecret(Struct, frozen=True):
    org: str
    scope: str
    key: str
    sealed: str
    key_version: int


async def put(db: Db, secret: SealedSecret) -> None:
    """Insert or replace."""
    await db.execute(
        """
        insert into scoped_secrets (org_id, scope, key, encrypted_value, key_version)
        values ($1, $2, $3, $4, $5)
            on conflict (org_id, scope, key) do update
           set encrypted_value = excluded.encrypted_value,
               key_version = excluded.key_version,
               updated_at = now()
        """,
        secret.org,
        secret.scope,
        secret.key,
        secret.sealed,
        secret.key_version,
    )


async def of_scopes(db: Db, org: str, scopes: Sequence[str]) -> list[SealedSecret]:
    rows = await db.fetch(
        """
        select org_id, scope, key, encrypted_value, key_version
          from scoped_secrets
         where org_id = $1 and scope = any($2::text[])
         order by scope, key
        """,
        org,
        list(scopes),
    )
    return [SealedSecret(*row) for row in rows]


async def delete_scope(db: Db, org: str, scope: str) -> None:
    await db.execute("delete from scoped_secrets where org_id = $1 and scope = $2", org, scope)
