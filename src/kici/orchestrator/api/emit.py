"""`POST /api/v1/agent/jobs/{id}/events`: a job emits an event. It is committed before the answer, like a delivery."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Protocol

import msgspec
from asyncpg import Pool, Record
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, JSONBody

from kici.orchestrator.api import permitted
from kici.orchestrator.api.attempts import attempt_of
from kici.orchestrator.errors import AttemptOver, Forbidden, Invalid, TooLarge
from kici.orchestrator.identity.access import Access
from kici.orchestrator.pipeline.emitted import MAX_CHAIN_DEPTH, PROVIDER, Emitted
from kici.orchestrator.store import event_claims, events, notify, origins, storable
from kici.orchestrator.store.database import Db, transaction
from kici.orchestrator.store.events import NewEvent
from kici.orchestrator.store.origins import Origin
from kici.wire.agent_api import Emit
from kici.wire.agent_api import Emitted as Answer

MAX_PAYLOAD_BYTES = 65_536
MAX_NAME_CHARS = 200
_KEY = re.compile(r"\A[\x21-\x7e]{1,200}\Z")


class Notifies(Protocol):
    def send(self, channel: str, key: str = "") -> None: ...


def routes(pool: Pool[Record], access: Access, notifier: Notifies) -> list[HTTPRouteHandler]:
    @post("/api/v1/agent/jobs/{job_id:str}/events", status_code=201)
    async def emit(
        job_id: FromPath[str], request: Request[Any, Any, Any], attempt: FromQuery[int], data: JSONBody[Emit]
    ) -> Answer:
        """A key that this job has used before, in whatever attempt, emits nothing new and gets the first one's id."""
        job = await attempt_of(access, request, job_id, attempt)
        permitted.require(job, "events", permitted.WRITE)
        _check(data)
        async with transaction(pool) as db:
            origin = await origins.hold(db, job.job_id, attempt)
            if origin is None:
                raise AttemptOver(f"event {data.name!r} was not emitted: attempt {attempt} of this job is over")
            event = _event(data, origin)
            (new,) = await events.insert_batch(db, [event])
            event_id = event.id if new else await _emitted_before(db, event.delivery_id)
        if new:
            notifier.send(notify.EVENTS)
        return Answer(event_id)

    return [emit]


def _check(emit: Emit) -> None:
    if not emit.name.strip() or len(emit.name) > MAX_NAME_CHARS:
        raise Invalid(f"name: an event has a name of 1 to {MAX_NAME_CHARS} characters")
    if not _KEY.match(emit.key):
        raise Invalid("key: 1 to 200 printable ASCII characters without blanks")
    size = len(msgspec.json.encode(emit.payload))
    if size > MAX_PAYLOAD_BYTES:
        raise TooLarge(
            f"the payload of event {emit.name!r} has {size:,} bytes; the limit is {MAX_PAYLOAD_BYTES:,}: use an"
            " artifact, and emit its name"
        )


def _event(emit: Emit, origin: Origin) -> NewEvent:
    if not origin.trusted:
        raise Forbidden(
            f"event {emit.name!r} was not emitted: the run comes from a pull request, and what it emits would start"
            " workflows of the default branch"
        )
    depth = origin.event.chain_depth + 1
    if depth > MAX_CHAIN_DEPTH:
        raise Invalid(
            f"event {emit.name!r} was not emitted: {MAX_CHAIN_DEPTH} events led to this run already, each emitted by a"
            " workflow that the one before had started: is it a circle?"
        )
    body = msgspec.json.encode(
        Emitted(
            name=emit.name,
            payload=emit.payload,
            repo=origin.repository,
            provider=origin.provider,
            routing_key=origin.routing_key,
            clone_url=origin.clone_url,
            default_branch=origin.event.default_branch,
            branch=origin.event.branch,
            sha=origin.sha,
            run_id=origin.run_id,
            job_id=origin.job_id,
            workflow=origin.workflow_name,
            job=origin.job_name,
            chain_depth=depth,
        )
    )
    return NewEvent(
        id=events.new_id(),
        delivery_id=f"{PROVIDER}:{origin.job_id}:{emit.key}",
        routing_key=origin.routing_key,
        event=PROVIDER,
        action=storable.text(emit.name),
        provider=PROVIDER,
        headers={"workflow": origin.workflow_name},
        repo=origin.repository,
        ref=origin.ref,
        content_type="application/json",
        size=len(body),
        sha256=hashlib.sha256(body).hexdigest(),
        body=body,
    )


async def _emitted_before(db: Db, delivery_id: str) -> str:
    first = await event_claims.find_delivery(db, delivery_id)
    assert first is not None
    return first.event_id
