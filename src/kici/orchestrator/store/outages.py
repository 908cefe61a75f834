"""Whether an outage is just over: then agents get a full lease's time to come back before anything is held against
them."""

from __future__ import annotations

from datetime import timedelta

from kici.orchestrator.store.database import Db


async def just_over(db: Db, instance: str, lease: timedelta) -> bool:
    """Whether the database or this coordinator came back less than a full lease ago.

    A database that nobody reached interrupts every coordinator's lease, so this sees that too.
    """
    settled = await db.fetchval(
        """
        select pg_postmaster_start_time() < now() - $2::interval
           and exists (select from coordinators where instance = $1 and lease_expires_at > now()
                          and lease_since < now() - $2::interval)
        """,
        instance,
        lease,
    )
    return not settled
