"""Admin tokens and agent tokens, by their SHA-256. The token itself is never stored."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from msgspec import Struct

from kici.orchestrator.store.database import Db

BOOTSTRAP = "bootstrap"
"""Reserved label of the token that is given from outside and upserted at each start."""


class AdminToken(Struct, frozen=True):
    id: str
    label: str
    role: str
    routing_key: str | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked: bool


class AgentToken(Struct, frozen=True):
    id: str
    token_prefix: str
    labels: list[str] | None
    """None = any."""
    agent_type: str
    created_at: datetime
    last_seen_at: datetime | None
    expires_at: datetime | None


class QueuedJob(Struct, frozen=True):
    """The attempt that a job token stands for."""

    job_id: str
    run_id: str
    attempt: int
    session_id: str | None
    repository: str
    workflow: str
    permissions: dict[str, str] | None
    """Of its workflow; None = it says nothing of them."""


async def create_admin(
    db: Db,
    token_hash: str,
    *,
    label: str,
    role: str,
    routing_key: str | None = None,
    expires_at: datetime | None = None,
) -> str:
    """Answers the row's id."""
    token_id: str = await db.fetchval(
        """
        insert into admin_tokens (token_hash, label, role, routing_key, expires_at) values ($1, $2, $3, $4, $5)
        returning id
        """,
        token_hash,
        label,
        role,
        routing_key,
        expires_at,
    )
    return token_id


async def put_bootstrap(db: Db, token_hash: str) -> None:
    """Make this the bootstrap token, an owner; the one before it ends. For a transaction.

    One coordinator after the other: two that insert the same new row at once meet at the hash, which `on conflict` does
    not cover.
    """
    await db.execute("select pg_advisory_xact_lock(hashtextextended('bootstrap token', 0))")
    await db.execute(
        """
        insert into admin_tokens (token_hash, label, role) values ($1, $2, 'owner')
        on conflict (label) where label = 'bootstrap' do update
           set token_hash = excluded.token_hash, role = 'owner', revoked = false, expires_at = null
        """,
        token_hash,
        BOOTSTRAP,
    )


async def find_admin(db: Db, token_hash: str) -> AdminToken | None:
    """The token if it is valid now."""
    row = await db.fetchrow(
        """
        select id, label, role, routing_key, created_at, expires_at, last_used_at, revoked
          from admin_tokens
         where token_hash = $1 and not revoked and (expires_at is null or expires_at > now())
        """,
        token_hash,
    )
    return None if row is None else AdminToken(**row)


async def why_refused(db: Db, token_hash: str) -> str:
    """Of a token that is not valid now: what became of it. Empty if there never was one."""
    row = await db.fetchrow("select revoked, expires_at from admin_tokens where token_hash = $1", token_hash)
    if row is None:
        return ""
    return "it was revoked" if row["revoked"] else f"it expired at {row['expires_at']:%Y-%m-%d %H:%M} UTC"


async def touch_admin(db: Db, token_id: str) -> None:
    """Note the use, at most once a minute."""
    await db.execute(
        """
        update admin_tokens set last_used_at = now()
         where id = $1 and (last_used_at is null or last_used_at < now() - interval '1 minute')
        """,
        token_id,
    )


async def list_admin(db: Db) -> list[AdminToken]:
    """Newest first, revoked ones included."""
    rows = await db.fetch(
        """
        select id, label, role, routing_key, created_at, expires_at, last_used_at, revoked
          from admin_tokens
         order by created_at desc, id
        """
    )
    return [AdminToken(**row) for row in rows]


async def revoke_admin(db: Db, token_id: str) -> bool:
    """False if there is no such token, or it was revoked before."""
    revoked = await db.fetchval(
        "update admin_tokens set revoked = true where id = $1 and not revoked returning true", token_id
    )
    return bool(revoked)


async def create_agent(
    db: Db,
    token_hash: str,
    *,
    prefix: str,
    labels: list[str] | None,
    created_by: str,
    agent_type: str = "static",
    expires_at: datetime | None = None,
) -> str:
    """Answers the row's id."""
    token_id: str = await db.fetchval(
        """
        insert into agent_tokens (token_hash, token_prefix, labels, agent_type, created_by, expires_at)
        values ($1, $2, $3, $4, $5, $6)
        returning id
        """,
        token_hash,
        prefix,
        labels,
        agent_type,
        created_by,
        expires_at,
    )
    return token_id


async def put_agent(db: Db, token_hash: str, *, prefix: str, created_by: str) -> None:
    """Make sure that the token exists and is valid, without a bound on its labels."""
    await db.execute(
        """
        insert into agent_tokens (token_hash, token_prefix, created_by) values ($1, $2, $3)
        on conflict (token_hash) do update set revoked_at = null, expires_at = null, labels = null
        """,
        token_hash,
        prefix,
        created_by,
    )


async def find_agent(db: Db, token_hash: str) -> AgentToken | None:
    """The token if it is valid now."""
    row = await db.fetchrow(
        """
        select id, token_prefix, labels, agent_type, created_at, last_seen_at, expires_at
          from agent_tokens
         where token_hash = $1 and revoked_at is null and (expires_at is null or expires_at > now())
        """,
        token_hash,
    )
    return None if row is None else AgentToken(**row)


async def touch_agent(db: Db, token_id: str) -> None:
    """Note that an agent came with it."""
    await db.execute("update agent_tokens set last_seen_at = now() where id = $1", token_id)


async def list_agent(db: Db) -> list[AgentToken]:
    """Not revoked, newest first."""
    rows = await db.fetch(
        """
        select id, token_prefix, labels, agent_type, created_at, last_seen_at, expires_at
          from agent_tokens
         where revoked_at is null
         order by created_at desc, id
        """
    )
    return [AgentToken(**row) for row in rows]


async def revoke_agent(db: Db, token_id: str) -> bool:
    """False if there is no such token, or it was revoked before."""
    revoked = await db.fetchval(
        "update agent_tokens set revoked_at = now() where id = $1 and revoked_at is null returning true", token_id
    )
    return bool(revoked)


async def not_valid(db: Db, token_ids: Collection[str]) -> set[str]:
    """Those of these agent tokens that let nobody in any more."""
    rows = await db.fetch(
        """
        select id from unnest($1::uuid[]) as asked (id)
         where not exists (select from agent_tokens t where t.id = asked.id and t.revoked_at is null
                              and (t.expires_at is null or t.expires_at > now()))
        """,
        sorted(token_ids),
    )
    return {row["id"] for row in rows}


async def find_job(db: Db, token_hash: str) -> QueuedJob | None:
    """The attempt whose token this is; None once it has ended."""
    row = await db.fetchrow(
        """
        select q.id as job_id, q.run_id, q.attempt, q.session_id, q.repository, q.workflow_name as workflow,
               (select j.definition -> 'permissions' from execution_jobs j where j.job_id = q.id) as permissions
          from dispatch_queue q where q.job_token_hash = $1
        """,
        token_hash,
    )
    return None if row is None else QueuedJob(**row)
