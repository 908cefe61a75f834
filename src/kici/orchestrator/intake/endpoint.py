"""The HTTP side of intake: `POST /webhook/…`.

A raw ASGI application: it decides before it reads, streams what it reads, and answers while a sender that is refused
may still be sending.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

import msgspec
import structlog
from litestar.enums import ScopeType
from litestar.types import HTTPReceiveMessage, HTTPScope, Receive, Scope, Send
from prometheus_client import Counter

from kici.errors import KiciError
from kici.forges.contract import BadSignature, Headers
from kici.orchestrator.errors import OrchestratorError, Unavailable
from kici.orchestrator.intake import body as bodies
from kici.orchestrator.intake.accept import Accepted, Duplicate, Filtered, Intake, Outcome
from kici.orchestrator.intake.body import Body, Limits, SenderLeft
from kici.orchestrator.intake.errors import Busy, CompressedBody, Misconfigured, RateLimited, UnknownSource, WrongMethod
from kici.orchestrator.intake.inflight import InflightBytes
from kici.orchestrator.intake.sources import KnownSource, Sources
from kici.orchestrator.store.events import ORG
from kici.wire.api import Problem

log = structlog.get_logger(__name__)

PATH: Final = "/webhook"
"""An `Endpoint` gets everything below it."""

ANSWERS = Counter("kici_webhook_answers_total", "Webhooks by the status that they were answered with", ["status"])

_LINGER_S: Final = 2.0
_LINGER_BYTES: Final = 64 * 1024 * 1024
_json = msgspec.json.Encoder()


@functools.cache
def _counted(status: int) -> Counter:
    return ANSWERS.labels(status)


class _Sender:
    """Receives, and knows whether the sender still has something to say."""

    __slots__ = ("_receive", "sending")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.sending = True

    async def __call__(self) -> HTTPReceiveMessage:
        message = cast("HTTPReceiveMessage", await self._receive())
        self.sending = message["type"] == "http.request" and message.get("more_body", False)
        return message


class Endpoint:
    def __init__(
        self,
        sources: Sources,
        intake: Intake,
        inflight: InflightBytes,
        *,
        spool_above: int,
        spool_directory: Path | None = None,
    ) -> None:
        self._sources = sources
        self._intake = intake
        self._inflight = inflight
        self._spool_above = spool_above
        self._spool_directory = spool_directory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.WEBSOCKET:
            await send({"type": "websocket.close", "code": 1008, "reason": "webhooks are delivered by POST"})
            return
        sender = _Sender(receive)
        try:
            status, answer = _answer(await self._take(scope, sender))
        except SenderLeft:
            return
        except KiciError as error:
            status = error.status
            await _refuse(error, sender, send)
        except Exception:
            status = 500
            log.exception("could not answer a webhook")
            await _refuse(OrchestratorError("Internal server error"), sender, send)
        else:
            await _respond(send, status, answer)
        _counted(status).inc()

    async def _take(self, scope: HTTPScope, receive: _Sender) -> Outcome:
        if scope["method"] != "POST":
            raise WrongMethod("webhooks are delivered by POST")
        candidates = self._candidates(scope["path"])
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        limits = Limits(max(known.body_limit for known in candidates), self._spool_above, self._spool_directory)
        _check_announced(headers, limits)
        with self._inflight.reserve() as reserved, await bodies.read(receive, limits, reserved) as body:
            source = await self._verified(candidates, headers, body)
            return await self._intake.store(source, headers, body)

    def _candidates(self, path: str) -> list[KnownSource]:
        """The sources that a path may mean; several only where it names a forge and no source.

        `/{source}`, `/{org}/github`, `/{org}/github/{source}`, `/{org}/generic/{source}`
        """
        if not self._sources.loaded:
            raise Unavailable("this orchestrator is starting: send it again in a moment")
        found: list[KnownSource | None] = []
        match path.rpartition(PATH + "/")[2].strip("/").split("/"):
            case [name] if name:
                found = [self._sources.by_name(name)]
            case [org, "github"] if org == ORG:
                found = list(self._sources.of_provider("github"))
            case [org, "github", name] if org == ORG:
                found = [known for known in self._sources.of_provider("github") if known.stored.name == name]
            case [org, "generic", name] if org == ORG:
                known = self._sources.by_name(name)
                found = [known] if known is not None and known.stored.provider != "github" else []
        candidates = [known for known in found if known is not None]
        if not candidates:
            raise UnknownSource("there is no such source: `kici-admin source list` shows those that there are")
        return candidates

    async def _verified(self, candidates: list[KnownSource], headers: Headers, body: Body) -> KnownSource:
        """The one whose secret the sender knows."""
        *others, last = candidates
        for known in others:
            with contextlib.suppress(BadSignature, Misconfigured):
                await self._intake.verify(known, headers, body)
                return known
        await self._intake.verify(last, headers, body)
        return last


def _check_announced(headers: Headers, limits: Limits) -> None:
    """What can be refused before a byte of the body is read."""
    if headers.get("content-encoding", "identity") != "identity":
        raise CompressedBody("send the body uncompressed: the signature is checked on the bytes as they come")
    announced = headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced) > limits.max_bytes:
        raise bodies.too_large(limits.max_bytes)


def _answer(outcome: Outcome) -> tuple[int, bytes]:
    match outcome:
        case Accepted(delivery_id):
            return 202, _json.encode({"accepted": True, "deliveryId": delivery_id})
        case Duplicate(delivery_id):
            return 200, _json.encode({"accepted": True, "duplicate": True, "deliveryId": delivery_id})
        case Filtered(reason):
            return 200, _json.encode({"accepted": True, "status": "filtered", "reason": reason})


async def _refuse(error: KiciError, sender: _Sender, send: Send) -> None:
    log.info("refused a webhook", status=error.status, code=error.code, reason=str(error))
    headers = []
    if isinstance(error, RateLimited):
        headers.append((b"retry-after", str(error.retry_after_s).encode()))
    elif error.status == 503:
        headers.append((b"retry-after", b"1" if isinstance(error, Busy) else b"5"))
    elif error.status == 405:
        headers.append((b"allow", b"POST"))
    answer = _json.encode(Problem(error=str(error), error_code=error.code))
    await _respond(send, error.status, answer, headers, linger=sender if sender.sending else None)


async def _respond(
    send: Send,
    status: int,
    answer: bytes,
    headers: Sequence[tuple[bytes, bytes]] = (),
    *,
    linger: _Sender | None = None,
) -> None:
    """`linger`: read on for a while after the answer. A socket that is closed while its sender still sends is reset,
    and the reset may overtake the answer.
    """
    everything = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(answer)).encode()),
        *headers,
    ]
    if linger is not None:
        everything.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": everything})
    await send({"type": "http.response.body", "body": answer, "more_body": linger is not None})
    if linger is not None:
        await _discard(linger)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _discard(sender: _Sender) -> None:
    left = _LINGER_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while sender.sending and left > 0:
                message = await sender()
                left -= len(message["body"]) if message["type"] == "http.request" else 0
