"""`POST /api/v1/admin/runs`: start a workflow that has `manual()` by hand.

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
from litestar.params import HeaderParameter, JSONBody

from kici.engine.errors import InputError
from kici.engine.inputs import as_text, coerce
from kici.engine.lockfile import LockWorkflow, ManualTrigger
from kici.forges.git.errors import BadRemote
from kici.forges.git.remote import check_ref
from kici.orchestrator.errors import Conflict, Invalid, NotFound
from kici.orchestrator.identity.access import Access, Principal
from kici.orchestrator.pipeline.manual import PROVIDER, ManualStart
from kici.orchestrator.store import database, event_claims, events, notify, registrations
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.events import NewEvent
from kici.orchestrator.store.registrations import Repository
from kici.wire.api import RunStart, RunStarted

PATH = "/api/v1/admin/runs"
MAX_INPUTS = 100
MAX_INPUT_BYTES = 65_536
_KEY = re.compile(r"\A[A-Za-z0-9._:-]{1,200}\Z")


class Notifies(Protocol):
    def send(self, channel: str, key: str = "") -> None: ...


def routes(access: Access, pool: Pool[Record], notifier: Notifies) -> list[HTTPRouteHandler]:
    @post(PATH, guards=[access.guard("run.trigger")], status_code=202, summary="Start a workflow by hand")
    async def start_run(
        request: Request[Principal, Principal, Any],
        data: JSONBody[RunStart],
        idempotency_key: Annotated[str, HeaderParameter(name="Idempotency-Key")] = "",
    ) -> RunStarted:
        """A request that is repeated with the same `Idempotency-Key` starts nothing new and gets the same answer."""
        _check(data, idempotency_key)
        delivery_id = f"{PROVIDER}:{request.user.id}:{idempotency_key or uuid.uuid4()}"
        async with database.transaction(pool) as db:
            event = _event(delivery_id, await _manual(db, data, request.user.actor))
            (stored,) = await events.insert_batch(db, [event])
            run_id = None if stored else await _same_request(db, event)
        if stored:
            notifier.send(notify.EVENTS)
        return RunStarted(delivery_id, run_id)

    return [start_run]


def _check(start: RunStart, idempotency_key: str) -> None:
    if not start.workflow:
        raise Invalid("workflow: name the workflow to start")
    if idempotency_key and not _KEY.match(idempotency_key):
        raise Invalid("Idempotency-Key: up to 200 letters, digits and . _ : -")
    if start.ref:
        try:
            check_ref(start.ref)
        except BadRemote as error:
            raise Invalid(f"ref: {error}") from error
    size = sum(len(name.encode()) + len(as_text(value).encode()) for name, value in start.inputs.items())
    if len(start.inputs) > MAX_INPUTS or size > MAX_INPUT_BYTES:
        raise Invalid(f"inputs: at most {MAX_INPUTS}, together {MAX_INPUT_BYTES:,} bytes")


async def _manual(db: Db, start: RunStart, actor: str) -> ManualStart:
    repository = _choose(await registrations.repositories(db), start.repo)
    if not start.ref:
        _check_inputs(start, await registrations.workflow(db, repository, start.workflow))
    context = repository.context
    return ManualStart(
        start=start,
        repo=repository.repo,
        provider=context.provider,
        routing_key=repository.routing_key,
        clone_url=context.clone_url,
        default_branch=context.default_branch,
        actor=actor,
    )


def _check_inputs(start: RunStart, workflow: LockWorkflow | None) -> None:
    """As early as it can be known: the pipeline asks again, for whatever commit it is then."""
    for trigger in workflow.triggers if workflow else ():
        if isinstance(trigger, ManualTrigger) and trigger.inputs is not None:
            try:
                coerce(trigger.inputs, start.inputs)
            except InputError as error:
                raise Invalid(f"inputs: {error}") from error


def _choose(known: list[Repository], repo: str) -> Repository:
    """The one that is named, or the only one."""
    names = sorted({repository.repo for repository in known})
    if repo and repo not in names:
        there_are = f"known are {', '.join(names[:10])}" if names else "none is known yet"
        raise NotFound(f"repo: no default branch of {repo!r} has been pushed with a workflow; {there_are}")
    if not names:
        raise NotFound("repo: no repository is known yet: push a workflow to a default branch first")
    if not repo and len(names) > 1:
        raise Invalid(f"repo: say which one; there are {', '.join(names[:10])}")
    return next(repository for repository in known if repository.repo == (repo or names[0]))


def _event(delivery_id: str, manual: ManualStart) -> NewEvent:
    body = msgspec.json.encode(manual)
    return NewEvent(
        id=events.new_id(),
        delivery_id=delivery_id,
        routing_key=manual.routing_key,
        event="manual",
        action="",
        provider=PROVIDER,
        headers={},
        repo=manual.repo,
        ref=manual.start.ref,
        content_type="application/json",
        size=len(body),
        sha256=hashlib.sha256(body).hexdigest(),
        body=body,
    )


async def _same_request(db: Db, event: NewEvent) -> str | None:
    """The run that the first request has started by now. Raises `Conflict` if that asked for something else."""
    first = await event_claims.find_delivery(db, event.delivery_id)
    if first is None or first.payload_hash != event.sha256:
        raise Conflict("Idempotency-Key: it was used for another request; take a new one")
    return first.run_id
