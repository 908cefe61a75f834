"""What an operator's tools ask an agent over HTTP: `/health`, `/ready`, `/metrics`. Off without `KICI_AGENT_HTTP`.

A server of a few lines: an agent has no other use for one, and each of the libraries costs more memory than it answers.
Nothing of a job is told, and nothing can be changed. One request per connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping

import msgspec
from msgspec import Struct

import kici
from kici.agent.errors import SettingsInvalid

REQUEST_S = 5.0
"""For the whole of a request to come, and of an answer to go."""
MAX_REQUEST_BYTES = 8_192
MAX_AT_ONCE = 32
"""Connections beyond that are closed without an answer."""


class State(Struct, frozen=True):
    """Of an agent now."""

    agent_id: str
    connected: bool
    draining: bool
    slots: int
    running: int
    ended: Mapping[str, int]
    """How many jobs have ended since the start, by their status."""


def listening(address: tuple[str, int]) -> socket.socket:
    """Bound at once, so that a port in use is known before a job is taken. Raises `SettingsInvalid`."""
    try:
        family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(address, family=family)
    except OSError as error:
        host, port = address
        raise SettingsInvalid(
            f"KICI_AGENT_HTTP: {host} port {port} cannot be used ({error.strerror}): choose another"
        ) from error


class Endpoints:
    """A service. Takes over `listener`."""

    def __init__(self, listener: socket.socket, state: Callable[[], State]) -> None:
        self._listener = listener
        self._state = state
        self._open = 0

    async def run(self) -> None:
        """Until cancelled."""
        server = await asyncio.start_server(self._serve, sock=self._listener, limit=MAX_REQUEST_BYTES)
        async with server:
            await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= MAX_AT_ONCE:
                async with asyncio.timeout(REQUEST_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(head.split(b"\r\n", 1)[0]))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # whoever asks so slowly, or so much, gets no answer
        finally:
            self._open -= 1
            writer.close()

    def _answer(self, request: bytes) -> bytes:
        words = request.decode("latin-1").split(" ")
        if len(words) != 3 or words[0] not in ("GET", "HEAD"):
            return _response(405, b"", "text/plain")
        status, body, kind = self._page(words[1].partition("?")[0])
        return _response(status, body, kind, head_only=words[0] == "HEAD")

    def _page(self, path: str) -> tuple[int, bytes, str]:
        state = self._state()
        match path:
            case "/health":
                known = {
                    "status": "ok",
                    "agentId": state.agent_id,
                    "version": kici.__version__,
                    "connected": state.connected,
                    "draining": state.draining,
                    "activeJobs": state.running,
                }
                return 200, msgspec.json.encode(known), "application/json"
            case "/ready":
                ready = state.connected and not state.draining
                told = {"status": "ready" if ready else "not ready", "checks": {"connected": state.connected}}
                return 200 if ready else 503, msgspec.json.encode(told), "application/json"
            case "/metrics":
                return 200, "".join(_metrics(state)).encode(), "text/plain; version=0.0.4; charset=utf-8"
            case _:
                return 404, b"", "text/plain"


def _metrics(state: State) -> Iterator[str]:
    yield "# TYPE kici_agent_jobs_total counter\n"
    for status, count in sorted(state.ended.items()):
        yield f'kici_agent_jobs_total{{status="{status}"}} {count}\n'
    for name, value in (
        ("kici_agent_jobs_active", state.running),
        ("kici_agent_slots", state.slots),
        ("kici_agent_connection_status", int(state.connected)),
        ("kici_agent_draining", int(state.draining)),
    ):
        yield f"# TYPE {name} gauge\n{name} {value}\n"


_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


def _response(status: int, body: bytes, kind: str, *, head_only: bool = False) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if head_only else body)
