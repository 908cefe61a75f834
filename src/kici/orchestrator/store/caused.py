"""How many runs the events of a workflow have started: the bound of what workflows cause."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from kici.orchestrator.store.database import Db


class Cause(Struct, frozen=True):
    """A workflow that causes events."""

    routing_key: str
    repo: str
    workflow: str


async def lock(db: Db, cause: Cause) -> None:
    """Until the transaction ends, nobody else counts or starts runs from events of this workflow."""
    await db.execute(
        "select pg_advisory_xact_lock(hashtextextended('caused ' || $1 || ' ' || $2 || ' ' || $3, 0))",
        cause.routing_key,
        cause.repo,
        cause.workflow,
    )


async def in_minute_of(db: Db, cause: Cause, received_at: datetime) -> int:
    """Events of the workflow that came in the same minute of the clock and have started runs."""
    found: int = await db.fetchval(
        """
        select count(*) from event_log
         where provider in ('kici_event', 'completion') and routing_key = $1 and repo_identifier = $2
           and headers ->> 'workflow' = $3 and matched_count > 0 and status = 'processed'
           and received_at >= date_trunc('minute', $4::timestamptz)
           and received_at < date_trunc('minute', $4::timestamptz) + interval '1 minute'
        """,
        cause.routing_key,
        cause.repo,
        cause.workflow,
        received_at,
    )
    return found
