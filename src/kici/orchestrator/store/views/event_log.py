"""Deliveries, as the API shows them."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from kici.orchestrator.store.database import Db
from kici.orchestrator.store.views.conditions import Conditions
from kici.wire import api

COUNTED = 10_000
"""A list's total is exact up to here."""

_DELIVERY = """
  e.delivery_id, e.routing_key, e.event, e.action, e.provider, e.status, e.matched_count, e.received_at,
  e.repo_identifier, e.ref, e.run_id, e.error_message, e.warnings, e.payload_size_bytes, e.payload_hash
"""


class Filter(Struct, frozen=True):
    org_id: str = "default"
    routing_key: str | None = None
    event: str | None = None
    action: str | None = None
    status: str | None = None
    received_from: datetime | None = None
    """Inclusive."""
    received_to: datetime | None = None
    """Exclusive."""
    delivery_id: str | None = None
    """A part of it."""

    def conditions(self) -> Conditions:
        made = Conditions()
        made.add("e.org_id = {}", self.org_id)
        made.add("e.routing_key = {}", self.routing_key)
        made.add("e.event = {}", self.event)
        made.add("e.action = {}", self.action)
        made.add("e.status = {}", self.status)
        made.add("e.received_at >= {}", self.received_from)
        made.add("e.received_at < {}", self.received_to)
        made.add("strpos(e.delivery_id, {}) > 0", self.delivery_id)
        return made


async def listed(db: Db, wanted: Filter, limit: int, offset: int) -> list[api.Delivery]:
    """Newest first. `run_ids` is left to `one`."""
    made = wanted.conditions()
    where = made.where
    rows = await db.fetch(
        f"""
        select {_DELIVERY} from event_log e {where}
         order by e.received_at desc, e.id desc limit {made.param(limit)} offset {made.param(offset)}
        """,  # noqa: S608 - constants
        *made.values,
    )
    return [api.Delivery(**row) for row in rows]


async def count(db: Db, wanted: Filter, *, up_to: int = COUNTED) -> int:
    made = wanted.conditions()
    where = made.where
    return int(
        await db.fetchval(
            f"select count(*) from (select from event_log e {where} limit {made.param(up_to)}) counted",  # noqa: S608
            *made.values,
        )
    )


async def one(db: Db, delivery_id: str, org_id: str = "default") -> api.Delivery | None:
    """With the runs that the delivery made."""
    row = await db.fetchrow(
        f"""
        select {_DELIVERY},
               coalesce((select array_agg(r.run_id::text order by r.workflow_name) from execution_runs r
                          where r.event_id = e.id and r.parent_run_id is null), '{{}}') as run_ids
          from event_log e where e.org_id = $1 and e.delivery_id = $2
        """,  # noqa: S608 - constants
        org_id,
        delivery_id,
    )
    return None if row is None else api.Delivery(**row)
