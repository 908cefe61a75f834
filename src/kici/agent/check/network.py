"""Hops on the way to the orchestrator: proxy, name, port, certificate, HTTP, WebSocket."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import SplitResult, unquote, urlsplit

import httpx
import msgspec
from websockets.exceptions import InvalidHandshake, InvalidStatus

from kici.agent import proxies
from kici.agent.check.hop import Finding, Hop, fail, in_thread, ok, warn
from kici.agent.check.known import Known
from kici.agent.connection import dial
from kici.agent.errors import TransferFailed
from kici.wire.api import Health, Readiness
from kici.wire.close_codes import CloseCode

SOON_S = 14 * 86_400
"""A certificate that ends earlier is warned of."""
_DEFAULT_PORTS = {"ws": 80, "wss": 443, "http": 80}
_MAX_HEAD_BYTES = 16_384
Params = dict[str, str | list[str]]
_EXPIRED, _MISMATCH = (10,), (62, 64)
"""What OpenSSL calls them."""


async def proxy(known: Known) -> Finding:
    found = proxies.on_the_way_to(known.settings.websocket_url)
    if found is None:
        return ok("none on the way")
    host, port = _address(urlsplit(found))
    return ok(f"{host}:{port}")


async def dns(known: Known) -> Finding:
    host, port = _address(_first(known))
    try:
        found = await in_thread(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except OSError as error:
        return fail(f"{host} has no address ({error.strerror})", "correct KICI_ORCHESTRATOR_URL, or the proxy's name")
    known.addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
    return ok(f"{host} is {', '.join(known.addresses)}")


async def tcp(known: Known) -> Finding:
    host, port = _address(_first(known))
    began = time.monotonic()
    async with _connected(known):
        return ok(f"port {port} of {host} answers in {(time.monotonic() - began) * 1000:.0f} ms")


async def tunnel(known: Known) -> Finding:
    way = proxies.on_the_way_to(known.settings.websocket_url)
    if way is None:
        return ok("not needed without a proxy")
    async with _tunnelled(known):
        return ok(f"the proxy leads on to {':'.join(map(str, _address(_target(known))))}")


async def tls(known: Known) -> Finding:
    target = _target(known)
    host, _ = _address(target)
    if target.scheme == "ws":
        if host == "localhost" or _is_loopback(host):
            return ok("not used on this machine itself")
        return warn("not used: the token and jobs' secrets travel in clear", "put TLS in front, and write wss://")
    try:
        async with _tunnelled(known) as (_, writer):
            await writer.start_tls(ssl.create_default_context(), server_hostname=host, ssl_handshake_timeout=10)
            secured = writer.get_extra_info("ssl_object")
            ends = ssl.cert_time_to_seconds(secured.getpeercert()["notAfter"])
            version = secured.version()
    except ssl.SSLCertVerificationError as error:
        return fail(f"the certificate of {host} is not accepted: {error.verify_message}", _about(error))
    except ssl.SSLError as error:
        return fail(f"no TLS with {host}: {error.reason}", "is that port TLS? Without it write ws://")
    left = ends - time.time()
    told = f"{version}, the certificate is valid for {left / 86_400:.0f} days, until {_day(ends)}"
    return warn(told, "renew it") if left < SOON_S else ok(told)


async def http(known: Known) -> Finding:
    url = f"{known.settings.http_url}/health"
    try:
        answer = await asked(url)
    except TransferFailed as error:
        return fail(str(error), _about_http(known, error))
    if answer.is_redirect:
        return fail(f"{url} leads to {answer.headers.get('location')}", "set KICI_ORCHESTRATOR_URL to that address")
    try:
        health = msgspec.json.decode(answer.content, type=Health)
    except msgspec.DecodeError:
        health = None
    if health is None or answer.status_code != 200:
        return fail(
            f"{url} answers {answer.status_code}, not as an orchestrator does", "correct KICI_ORCHESTRATOR_URL's path"
        )
    return ok(f"version {health.version}, instance {health.instance_id}")


async def ready(known: Known) -> Finding:
    answer = await asked(f"{known.settings.http_url}/ready")
    try:
        told = msgspec.json.decode(answer.content, type=Readiness)
    except msgspec.DecodeError:
        return fail(f"/ready answers {answer.status_code}, not as an orchestrator does")
    if answer.status_code == 200:
        return ok(told.status)
    missing = ", ".join(name for name, good in told.checks.items() if not good)
    return fail(f"the orchestrator is not ready: {missing}", "see the orchestrator's log")


async def websocket(known: Known) -> Finding:
    """Without a word: a socket that says no hello opens no session."""
    url = known.settings.websocket_url
    try:
        async with dial(url) as opened:
            await opened.close(CloseCode.NORMAL, "kici-agent check")
    except InvalidStatus as error:
        code = error.response.status_code
        return fail(f"{url} answers {code}, and no WebSocket", "whatever stands in front must pass `Upgrade` on")
    except InvalidHandshake as error:
        return fail(f"{url}: {error}", "whatever stands in front must pass `Upgrade` on")
    return ok(f"{url} opens")


HOPS: Sequence[Hop[Known]] = (
    Hop("proxy", proxy, 5, ("settings",)),
    Hop("dns", dns, 10, ("proxy",), "see whether this machine's resolver works"),
    Hop("tcp", tcp, 10, ("dns",), "is it started, and does a firewall let this machine through?"),
    Hop("tunnel", tunnel, 15, ("tcp",), "the proxy must allow CONNECT to the orchestrator"),
    Hop("tls", tls, 20, ("tunnel", "certificates"), "is that port TLS? Without it write ws://"),
    Hop("http", http, 20, ("tls",), "see the orchestrator's log"),
    Hop("ready", ready, 20, ("http",), "see the orchestrator's log"),
    Hop("websocket", websocket, 20, ("http",), "whatever stands in front must pass `Upgrade` on"),
)


async def asked(url: str, *, token: str = "", params: Params | None = None) -> httpx.Response:
    """As the agent's requests are made. Raises `TransferFailed`."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        async with httpx.AsyncClient(headers=headers, timeout=15.0, follow_redirects=False) as client:
            return await client.get(url, params=params)
    except httpx.HTTPError as error:
        raise TransferFailed(f"{url}: {error or type(error).__name__}") from error


def _target(known: Known) -> SplitResult:
    return urlsplit(known.settings.websocket_url)


def _first(known: Known) -> SplitResult:
    """Whom this machine talks to."""
    way = proxies.on_the_way_to(known.settings.websocket_url)
    return _target(known) if way is None else urlsplit(way)


def _address(parts: SplitResult) -> tuple[str, int]:
    assert parts.hostname
    return parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme]


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def _connected(known: Known) -> AsyncIterator[Streams]:
    """To the first of the addresses that answers. Raises `OSError`."""
    _, port = _address(_first(known))
    for address in known.addresses:
        try:
            reader, writer = await asyncio.open_connection(address, port, limit=_MAX_HEAD_BYTES)
        except OSError:
            if address == known.addresses[-1]:
                raise
        else:
            break
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


@asynccontextmanager
async def _tunnelled(known: Known) -> AsyncIterator[Streams]:
    """To the orchestrator, through the proxy if there is one. Raises `OSError`."""
    way = proxies.on_the_way_to(known.settings.websocket_url)
    async with _connected(known) as (reader, writer):
        if way is not None:
            writer.write(_connect(urlsplit(way), _address(_target(known))))
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                raise ConnectionError("the proxy does not answer as one") from None
            line = head.split(b"\r\n", 1)[0].decode("latin-1")
            if line.split(" ")[1:2] != ["200"]:
                raise ConnectionError(f"the proxy says no: {line[:200]}")
        yield reader, writer


def _connect(way: SplitResult, target: tuple[str, int]) -> bytes:
    host, port = target
    there = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {there} HTTP/1.1", f"Host: {there}"]
    if way.username is not None:
        login = f"{unquote(way.username)}:{unquote(way.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {b64encode(login.encode()).decode()}")
    return "\r\n".join([*lines, "", ""]).encode()


def _about(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in _EXPIRED:
        return "renew the orchestrator's certificate, and look at this machine's clock"
    if error.verify_code in _MISMATCH:
        return "write a name into KICI_ORCHESTRATOR_URL that the certificate is for"
    return "set KICI_CA_BUNDLE to a file with its authority; see docs/operator/running.md"


def _about_http(known: Known, error: TransferFailed) -> str:
    if "certificate" in str(error).lower() and known.settings.ca_bundle is None:
        # The socket takes the machine's authorities, requests those that came with their library.
        return "set KICI_CA_BUNDLE, like /etc/ssl/certs/ca-certificates.crt: requests do not look there by themselves"
    return "see the orchestrator's log, and what stands in front of it"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))
