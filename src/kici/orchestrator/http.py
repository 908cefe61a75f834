"""The HTTP side: routes become an application, errors become answers, and the server stops when we say so."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import asyncpg
import structlog
import uvicorn
from litestar import Litestar, Request, Response, Router
from litestar.exceptions import HTTPException, SerializationException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import ASGIApp, Receive, Scope, Send
from litestar.types import Message as AsgiMessage

from kici import __version__
from kici.errors import KiciError
from kici.orchestrator.errors import OrchestratorError
from kici.orchestrator.store.database import is_away, is_transient
from kici.wire.api import Problem
from kici.wire.codec import MAX_MESSAGE_BYTES

log = structlog.get_logger(__name__)

BODY_BYTES = 26_214_400
"""The largest body of a request, where a route does not say otherwise."""
SHUTDOWN_S = 5
"""How long requests may go on after the server was told to stop."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class AddressUnusable(OrchestratorError):
    code = "address_unusable"


def application(routes: Sequence[Any], *, base_path: str = "/", raw: Mapping[str, ASGIApp] | None = None) -> ASGIApp:
    """An ASGI application of all routes below `base_path`, `/schema` (OpenAPI) included.

    `raw` are applications by the path below which they get everything, past the framework: they answer errors too.
    """
    base = "/" + base_path.strip("/")
    app = Litestar(
        route_handlers=[Router(base, route_handlers=list(routes))],
        exception_handlers={Exception: answer_error},
        request_max_body_size=BODY_BYTES,
        openapi_config=OpenAPIConfig(
            title="kici",
            version=__version__,
            path=f"{base.rstrip('/')}/schema",
            render_plugins=[JsonRenderPlugin(path="/openapi.json")],
            components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
        ),
        logging_config=None,
    )
    return RequestLog(Raw(app, {base.rstrip("/") + path: inner for path, inner in (raw or {}).items()}))


def answer_error(_: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    """Every error as a `Problem` with its status."""
    status, problem = explain(error)
    headers = getattr(error, "headers", None) or {}
    if status == 503:
        headers = {"Retry-After": "1", **headers}
    if status == 401:
        headers = {"WWW-Authenticate": "Bearer", **headers}
    return Response(problem, status_code=status, headers=headers, media_type="application/json")


def explain(error: Exception) -> tuple[int, Problem]:
    """The status and the sentence of an error; an unexpected one is logged and keeps its text to itself."""
    if isinstance(error, KiciError):
        if error.status >= 500:
            log.warning("could not answer", code=error.code, error=str(error), cause=repr(error.__cause__))
        return error.status, Problem(str(error), error.code)
    if isinstance(error, HTTPException):
        return _explain_http(error)
    if isinstance(error, SerializationException):
        return 400, Problem("the body is not valid JSON", "invalid_request", [str(error)])
    if isinstance(error, asyncpg.DataError):
        return 400, Problem("Invalid request: malformed value for a typed field", "invalid_request")
    if isinstance(error, asyncpg.UniqueViolationError):
        return 409, Problem("Conflict: resource already exists", "conflict")
    if is_away(error):
        log.warning("could not answer: the database is away", error=repr(error))
        return 503, Problem("the database cannot be reached: try again", "unavailable")
    if is_transient(error):
        log.warning("could not answer: the transaction was refused", error=repr(error))
        return 503, Problem("the database was busy with the same rows: try again", "unavailable")
    log.error("could not answer", exc_info=error)
    return 500, Problem("Internal server error", "internal_error")


def _explain_http(error: HTTPException) -> tuple[int, Problem]:
    codes = {400: "invalid_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 413: "too_large"}
    code = codes.get(error.status_code, "error")
    if error.status_code >= 500:
        log.error("could not answer", exc_info=error)
        return error.status_code, Problem("Internal server error", "internal_error")
    if isinstance(error.__cause__, SerializationException):
        return 400, Problem("the body is not valid JSON", code, [str(error.__cause__)])
    extra = error.extra if isinstance(error.extra, list) else []
    details = [
        ": ".join(filter(None, (str(item.get("key", "")), str(item.get("message", "")))))
        for item in extra
        if isinstance(item, dict)
    ]
    return error.status_code, Problem("Validation error" if details else error.detail, code, details)


class Raw:
    """Sends what is below some paths past the framework, whose routing costs more than taking in a webhook does."""

    def __init__(self, app: ASGIApp, by_path: Mapping[str, ASGIApp]) -> None:
        self._app = app
        self._by_path = [(path, path + "/", inner) for path, inner in by_path.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in {"http", "websocket"}:
            asked = scope["path"]
            for path, below, inner in self._by_path:
                if asked.startswith(below) or asked == path:
                    await inner(scope, receive, send)
                    return
        await self._app(scope, receive, send)


class RequestLog:
    """Gives each request an id, which stands in its answer and in all its log lines, and logs how it ended."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        given = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
        request_id = given if _REQUEST_ID.fullmatch(given) else str(uuid.uuid4())
        began = time.perf_counter()
        status = 0

        async def send_with_id(message: AsgiMessage) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, send_with_id)
            finally:
                log.debug(
                    "answered",
                    method=scope.get("method", "WS"),
                    path=scope["path"],
                    status=status,
                    duration_ms=round((time.perf_counter() - began) * 1000, 1),
                )


class HttpServer:
    """A service. `listening` is set once it accepts connections."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        self._app = app
        self._listener = listener
        self.listening = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled; then accept nothing more, and give running requests `SHUTDOWN_S` to end."""
        server = _Server(self._app, self.listening)
        # A duplicate, because the server closes what it is given: another start finds the listener as it was.
        serving = asyncio.create_task(server.serve([self._listener.dup()]))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            server.should_exit = True
            await serving
            raise


class _Server(uvicorn.Server):
    def __init__(self, app: ASGIApp, listening: asyncio.Event) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http="httptools",
                ws="websockets-sansio",
                ws_max_size=MAX_MESSAGE_BYTES,
                ws_per_message_deflate=False,
                ws_ping_interval=None,
                lifespan="off",
                proxy_headers=False,
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=SHUTDOWN_S,
            )
        )
        self._listening = listening

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: uvicorn would close all sockets at once and end the process."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening.set()


def listen(host: str, port: int, fd: int | None) -> socket.socket:
    """The listening socket: the inherited one, else a new one. Raises `AddressUnusable`."""
    try:
        if fd is not None:
            listener = socket.socket(fileno=fd)
        else:
            listener = socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024
            )
    except OSError as error:
        place = f"descriptor {fd} (KICI_LISTEN_FD)" if fd is not None else f"{host}:{port} (KICI_HOST, KICI_PORT)"
        raise AddressUnusable(f"{place} cannot be listened on: {error.strerror}") from error
    listener.setblocking(False)
    return listener


def address(listener: socket.socket) -> str:
    """The URL of a listening socket, for somebody on this host."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - told apart, not bound to
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
