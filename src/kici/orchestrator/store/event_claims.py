"""Who works on an event of the log, and how that ends.

An event is open while its status is `received`. A claim makes it invisible until `next_attempt_at`; its holder pushes
that on while it works, so the event of a coordinator that died is visible again after one lease. Claims are counted in
`attempts`: the number is the fence, and whoever has lost the event to a later claim writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from kici.orchestrator.errors import OrchestratorError
from kici.orchestrator.store import storable
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.events import ORG


class ClaimLost(OrchestratorError):
    """Somebody else works on the event now, or has ended it."""

    code = "claim_lost"
    status = 409


class Claim(Struct, frozen=True, kw_only=True):
    event_id: str
    attempt: int
    """From 1."""
    org_id: str
    delivery_id: str
    routing_key: str
    provider: str
    event_name: str
    headers: dict[str, str]
    body: bytes | None
    received_at: datetime
    last_error: str | None

    def __repr__(self) -> str:
        return f"Claim(event_id={self.event_id!r}, attempt={self.attempt}, event_name={self.event_name!r})"


class Ended(Struct, frozen=True, kw_only=True):
    """How an event ended, in words for the person who sent it."""

    status: str
    """`processed`, `duplicate`, `ignored`, `lockfile_missing`, `lockfile_corrupt`, `failed`"""
    message: str = ""
    warnings: Sequence[str] = ()
    matched: int = 0
    run_id: str | None = None
    """The first run that was made."""
    repo: str = ""
    ref: str = ""


async def claim(db: Db, holder: str, lease: timedelta, limit: int) -> list[Claim]:
    """Up to `limit` open events that are due, longest due first."""
    rows = await db.fetch(
        """
        with due as (
          select id from event_log
           where status = 'received' and next_attempt_at <= now()
           order by next_attempt_at
           limit $3
             for update skip locked
        ), taken as (
          update event_log e
             set claimed_by = $1, claim_deadline = now() + $2, next_attempt_at = now() + $2, attempts = attempts + 1
            from due
           where e.id = due.id
          returning e.*
        )
        select t.id as event_id, t.attempts as attempt, t.org_id, t.delivery_id, t.routing_key, t.provider,
               t.event as event_name, t.headers, p.body, t.received_at, t.error_message as last_error
          from taken t
          left join event_payloads p on p.event_id = t.id
         order by t.received_at
        """,
        holder,
        lease,
        limit,
    )
    return [Claim(**row) for row in rows]


async def renew(db: Db, held: Claim, lease: timedelta) -> bool:
    """Keep the event for another `lease`; False if it is lost."""
    done = await db.execute(
        """
        update event_log set claim_deadline = now() + $3, next_attempt_at = now() + $3
         where id = $1 and attempts = $2 and status = 'received'
        """,
        held.event_id,
        held.attempt,
        lease,
    )
    return bool(done == "UPDATE 1")


async def guard(db: Db, held: Claim) -> None:
    """Lock the event until the transaction ends, or raise `ClaimLost`."""
    still = await db.fetchval(
        "select true from event_log where id = $1 and attempts = $2 and status = 'received' for update",
        held.event_id,
        held.attempt,
    )
    if not still:
        raise ClaimLost(f"event {held.event_id} was taken over by another worker")


async def end(db: Db, held: Claim, ended: Ended) -> None:
    """Write how it ended. The caller has called `guard` in this transaction."""
    await db.execute(
        """
        update event_log
           set status = $2, error_message = nullif($3, ''), warnings = $4, matched_count = $5, run_id = $6,
               repo_identifier = coalesce(nullif($7, ''), repo_identifier), ref = coalesce(nullif($8, ''), ref),
               processed_at = now(), claimed_by = null, claim_deadline = null
         where id = $1
        """,
        held.event_id,
        ended.status,
        storable.text(ended.message),
        [storable.text(warning) for warning in ended.warnings],
        ended.matched,
        ended.run_id,
        ended.repo,
        ended.ref,
    )


async def try_later(db: Db, held: Claim, delay: timedelta, why: str) -> bool:
    """Give the event back, due after `delay`; False if it was lost before."""
    done = await db.execute(
        """
        update event_log
           set next_attempt_at = now() + $3, error_message = $4, claimed_by = null, claim_deadline = null
         where id = $1 and attempts = $2 and status = 'received'
        """,
        held.event_id,
        held.attempt,
        delay,
        storable.text(why),
    )
    return bool(done == "UPDATE 1")


async def give_back(db: Db, holder: str) -> int:
    """Everything that `holder` has claimed is due at once, and not counted: it stops in order."""
    done = await db.execute(
        """
        update event_log
           set next_attempt_at = now(), attempts = attempts - 1, claimed_by = null, claim_deadline = null
         where claimed_by = $1 and status = 'received'
        """,
        holder,
    )
    return int(done.removeprefix("UPDATE "))


class ProcessedBody(Struct, frozen=True):
    event_id: str
    org_id: str
    body: bytes


async def processed_bodies(db: Db, limit: int) -> list[ProcessedBody]:
    """Bodies of events that nobody will process again, oldest first."""
    rows = await db.fetch(
        """
        select p.event_id, e.org_id, p.body
          from event_payloads p
          join event_log e on e.id = p.event_id
         where e.status <> 'received'
         order by p.created_at
         limit $1
        """,
        limit,
    )
    return [ProcessedBody(**row) for row in rows]


async def body_moved(db: Db, event_id: str, key: str) -> None:
    """The object store has the body now: remember where, and drop it here."""
    await db.execute(
        """
        with gone as (delete from event_payloads where event_id = $1 returning event_id)
        update event_log e set payload_key = $2 from gone where e.id = gone.event_id
        """,
        event_id,
        key,
    )


class KnownDelivery(Struct, frozen=True):
    event_id: str
    payload_hash: str
    run_id: str | None


async def find_delivery(db: Db, delivery_id: str) -> KnownDelivery | None:
    row = await db.fetchrow(
        "select id as event_id, payload_hash, run_id from event_log where org_id = $1 and delivery_id = $2",
        ORG,
        delivery_id,
    )
    return KnownDelivery(**row) if row else None
