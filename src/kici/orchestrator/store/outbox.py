"""Work that follows from a change, written in the transaction of the change and done afterwards, at least once.

A claim is fenced by its number (`attempts`): a worker that was slow finds that the row is not its own any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from kici.orchestrator.store.database import Db


class Claim(Struct, frozen=True):
    id: int
    target: str
    payload: dict[str, Any]
    attempts: int
    """This one included. No other claim of the row has the same number while its work lasts."""
    age_s: float
    """Since the row was put."""


class Put(Struct, frozen=True):
    """Work to ask for, once per `dedupe_key` as long as it is not done."""

    kind: str
    target: str
    dedupe_key: str
    payload: dict[str, Any] = {}
    delay_s: float = 0.0


async def put_all(db: Db, puts: Sequence[Put]) -> None:
    """Tell `notify.OUTBOX` after the commit."""
    # In the order of the key, so that two coordinators with the same keys do not block each other.
    ordered = sorted(puts, key=lambda one: one.dedupe_key)
    await db.execute(
        """
        insert into outbox (kind, target, dedupe_key, payload, due_at)
        select kind, target, dedupe_key, payload, now() + make_interval(secs => delay_s)
          from unnest($1::text[], $2::text[], $3::text[], $4::jsonb[], $5::float8[])
            as p (kind, target, dedupe_key, payload, delay_s)
        on conflict (dedupe_key) do nothing
        """,
        [one.kind for one in ordered],
        [one.target for one in ordered],
        [one.dedupe_key for one in ordered],
        [one.payload for one in ordered],
        [one.delay_s for one in ordered],
    )


async def put(
    db: Db, kind: str, target: str, *, dedupe_key: str, payload: Mapping[str, Any] | None = None, delay_s: float = 0
) -> None:
    """`put_all` for one."""
    await put_all(db, [Put(kind, target, dedupe_key, dict(payload or {}), delay_s)])


async def claim(db: Db, kind: str, batch: int, *, hold_s: float) -> list[Claim]:
    """Take up to `batch` rows that are due, for `hold_s`; then they are due again for anybody."""
    rows = await db.fetch(
        """
        with due as materialized (
          select id from outbox where kind = $1 and due_at <= now() order by due_at limit $2 for update skip locked
        )
        update outbox o set attempts = attempts + 1, due_at = now() + make_interval(secs => $3)
          from due where o.id = due.id
        returning o.id, o.target, o.payload, o.attempts,
                  extract(epoch from now() - o.created_at)::float8 as age_s
        """,
        kind,
        batch,
        hold_s,
    )
    return [Claim(**row) for row in rows]


async def done(db: Db, claim: Claim) -> bool:
    """Remove the row. False: the claim ran out and somebody else has the row."""
    return (
        await db.execute("delete from outbox where id = $1 and attempts = $2", claim.id, claim.attempts) == "DELETE 1"
    )


async def give_back(db: Db, claim: Claim, delay_s: float) -> None:
    """It is too early: due again in `delay_s`, and the attempt does not count. Only before anything was done."""
    await db.execute(
        """
        update outbox set due_at = now() + make_interval(secs => $3), attempts = attempts - 1
         where id = $1 and attempts = $2
        """,
        claim.id,
        claim.attempts,
        delay_s,
    )


async def fail(db: Db, claim: Claim, error: str, delay_s: float) -> None:
    """It did not work: due again in `delay_s`."""
    await db.execute(
        """
        update outbox set due_at = now() + make_interval(secs => $3), last_error = $4
         where id = $1 and attempts = $2
        """,
        claim.id,
        claim.attempts,
        delay_s,
        error[:2000],
    )


async def next_due_s(db: Db, kind: str) -> float | None:
    """Seconds until the first row is due, 0 if one is; None: there is none."""
    due: float | None = await db.fetchval(
        """
        select greatest(extract(epoch from due_at - now()), 0)::float8
          from outbox where kind = $1 order by due_at limit 1
        """,
        kind,
    )
    return due
