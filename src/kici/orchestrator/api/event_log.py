"""`/api/v1/admin/event-log`: what was delivered, and what became of it."""

from __future__ import annotations

from typing import Annotated

from asyncpg import Pool, Record
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, QueryParameter

from kici.orchestrator.api import parameters
from kici.orchestrator.errors import Invalid, NotFound
from kici.orchestrator.identity.access import Access
from kici.orchestrator.store.database import transaction
from kici.orchestrator.store.views import event_log
from kici.wire import api

STATUSES = ("received", "processed", "duplicate", "ignored", "lockfile_missing", "lockfile_corrupt", "failed")
_MAX_ID = 500


def routes(pool: Pool[Record], access: Access) -> list[HTTPRouteHandler]:
    @get("/api/v1/admin/event-log", guards=[access.guard("event_log.read")])
    async def list_deliveries(
        org_id: Annotated[str, QueryParameter(name="orgId")] = "default",
        routing_key: Annotated[str | None, QueryParameter(name="routingKey")] = None,
        event: FromQuery[str | None] = None,
        action: FromQuery[str | None] = None,
        status: FromQuery[str | None] = None,
        received_from: Annotated[str | None, QueryParameter(name="from")] = None,
        received_to: Annotated[str | None, QueryParameter(name="to")] = None,
        delivery_id: Annotated[str | None, QueryParameter(name="deliveryId")] = None,
        limit: FromQuery[int] = 50,
        offset: FromQuery[int] = 0,
    ) -> api.DeliveryList:
        """Newest first. `from` is inclusive, `to` is not; `deliveryId` may be a part. `total` is exact up to 10,000."""
        wanted = event_log.Filter(
            org_id=org_id,
            routing_key=routing_key,
            event=event,
            action=action,
            status=parameters.one_of(status, STATUSES, "status"),
            received_from=parameters.instant(received_from, "from"),
            received_to=parameters.instant(received_to, "to"),
            delivery_id=delivery_id,
        )
        parameters.within(limit, 1, 200, "limit")
        parameters.within(offset, 0, 1_000_000, "offset")
        async with transaction(pool) as db:
            found = await event_log.listed(db, wanted, limit, offset)
            return api.DeliveryList(found, await event_log.count(db, wanted), limit, offset)

    @get("/api/v1/admin/event-log/{delivery_id:str}", guards=[access.guard("event_log.read")])
    async def show_delivery(
        delivery_id: FromPath[str], org_id: Annotated[str, QueryParameter(name="orgId")] = "default"
    ) -> api.DeliveryAnswer:
        """One delivery with the runs that it made."""
        if len(delivery_id) > _MAX_ID or "\0" in delivery_id:
            raise Invalid("Invalid request: that is not a delivery id")
        async with transaction(pool) as db:
            found = await event_log.one(db, delivery_id, org_id)
        if found is None:
            raise NotFound("Delivery not found")
        return api.DeliveryAnswer(found)

    return [list_deliveries, show_delivery]
