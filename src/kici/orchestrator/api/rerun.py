"""`POST /api/v1/admin/runs/{runId}/rerun`: run a run again, whole, or what failed of it, or one job.

The request becomes an event like any delivery: it is committed before the answer, and the pipeline makes the run.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Annotated, Any, Protocol

import msgspec
from asyncpg import Pool, Record
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, HeaderParameter

from kici.engine.evaluation import init_name
from kici.engine.lifecycle import TERMINAL_RUN, JobStatus
from kici.orchestrator.api import parameters
from kici.orchestrator.errors import Conflict, Invalid, NotFound
from kici.orchestrator.identity.access import Access, Principal
from kici.orchestrator.pipeline.rerun import PROVIDER, RerunRequest
from kici.orchestrator.store import database, event_claims, events, notify, reruns
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.events import NewEvent
from kici.orchestrator.store.reruns import Original
from kici.wire.api import RerunBody, RunStarted

_KEY = re.compile(r"\A[A-Za-z0-9._:-]{1,200}\Z")
_MAX_BODY = 65_536


class Notifies(Protocol):
    def send(self, channel: str, key: str = "") -> None: ...


def routes(access: Access, pool: Pool[Record], notifier: Notifies) -> list[HTTPRouteHandler]:
    @post("/api/v1/admin/runs/{run_id:str}/rerun", guards=[access.guard("run.rerun")], status_code=202)
    async def rerun(
        run_id: FromPath[str],
        request: Request[Principal, Principal, Any],
        idempotency_key: Annotated[str, HeaderParameter(name="Idempotency-Key")] = "",
    ) -> RunStarted:
        """Run an ended run again. One rerun per request id (or `Idempotency-Key`): asked again, it is the same answer.

        409: the run has not ended, or nothing of it failed.
        """
        wanted = parameters.uuid_of(run_id, "run")
        body = _checked(await request.body(), idempotency_key)
        asked = RerunRequest(
            run_id=wanted,
            request_id=body.request_id or str(uuid.uuid4()),
            mode=body.mode,
            job=body.job,
            current=body.commit == "current",
            actor=request.user.actor,
        )
        async with database.transaction(pool) as db:
            original = await reruns.original(db, wanted)
            if original is None:
                raise NotFound(f"Run {wanted} not found")
            event = _event(asked, original)
            if (known := await event_claims.find_delivery(db, event.delivery_id)) is None:
                await _check(db, asked, original)
                (stored,) = await events.insert_batch(db, [event])
                known = None if stored else await event_claims.find_delivery(db, event.delivery_id)
            if known is not None and known.payload_hash != event.sha256:
                raise Conflict("requestId: it was used for another rerun of this run; take a new one")
        if known is None:
            notifier.send(notify.EVENTS)
        return RunStarted(event.delivery_id, known.run_id if known else None)

    return [rerun]


def _checked(data: bytes, idempotency_key: str) -> RerunBody:
    if len(data) > _MAX_BODY:
        raise Invalid("Invalid request: the body is too large")
    try:
        body = msgspec.json.decode(data or b"{}", type=RerunBody)
    except msgspec.DecodeError as error:
        raise Invalid(f"Validation error: {error}") from error
    if body.request_id and idempotency_key and body.request_id != idempotency_key:
        raise Invalid("requestId and Idempotency-Key differ: give one of them")
    body = msgspec.structs.replace(body, request_id=body.request_id or idempotency_key)
    if body.request_id and not _KEY.match(body.request_id):
        raise Invalid("requestId: up to 200 letters, digits and . _ : -")
    if (body.mode == "job") != bool(body.job):
        raise Invalid("job: name it with the mode `job`, and only then")
    if body.commit == "current" and body.mode != "all":
        raise Invalid(
            f"commit: at the current commit the whole run is run again; the mode {body.mode!r} reuses jobs, and those"
            " belong to the run's own commit"
        )
    return body


async def _check(db: Db, asked: RerunRequest, original: Original) -> None:
    if original.status not in TERMINAL_RUN:
        raise Conflict(
            f"run {original.run_id} is {original.status}: it can be rerun once it has ended; wait for that, or cancel"
            " it first"
        )
    jobs = await reruns.names(db, original.run_id)
    empty = init_name(asked.job)  # of a generator that has made no job
    if asked.mode == "job" and not any(
        asked.job in (one.name, one.base, one.generator) or one.name == empty for one in jobs
    ):
        there_are = ", ".join(dict.fromkeys(one.generator for one in jobs)) or "none"
        raise NotFound(f"the run has no job {asked.job!r}; it has: {there_are}")
    fine = {JobStatus.SUCCESS, JobStatus.SKIPPED}
    if asked.mode == "failed" and jobs and all(one.status in fine for one in jobs):
        raise Conflict("no job of the run failed: rerun all of it, or name one job")


def _event(asked: RerunRequest, original: Original) -> NewEvent:
    body = msgspec.json.encode(asked)
    return NewEvent(
        id=events.new_id(),
        delivery_id=f"{PROVIDER}:{asked.run_id}:{asked.request_id}",
        routing_key=original.routing_key,
        event="rerun",
        action=asked.mode,
        provider=PROVIDER,
        headers={},
        repo=original.repo,
        ref=original.event.ref,
        content_type="application/json",
        size=len(body),
        sha256=hashlib.sha256(body).hexdigest(),
        body=body,
    )
