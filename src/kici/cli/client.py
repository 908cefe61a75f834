"""How `kici` reaches an orchestrator. The HTTP library is imported with the first request.

URL and token come from `KICI_URL` and `KICI_TOKEN`, else from the file that `kici login` and `kici up` write: see
`cli.config`. The token is sent and never shown.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

from kici.authorities import tls_context
from kici.cli import config
from kici.errors import KiciError

if TYPE_CHECKING:
    import httpx

API = "/api/v1/admin"
TIMEOUT_S = 30.0

T = TypeVar("T")
Query = Mapping[str, str | int | None]


class ClientError(KiciError):
    """The command could not do what it was asked."""

    code = "client_error"


class Unreachable(ClientError):
    """Nobody answered: the same request may succeed later."""

    code = "unreachable"


class Refused(ClientError):
    """The orchestrator answered with an error."""

    code = "refused"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Paths begin below `/api/v1/admin`. Everything that goes wrong is a `ClientError`."""

    def __init__(self, url: str, token: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._token = token
        self._http: httpx.Client | None = None

    def __repr__(self) -> str:
        return f"Client({self._url!r})"

    @property
    def url(self) -> str:
        return self._url

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def get(self, path: str, answer: type[T], query: Query | None = None) -> T:
        return self._decode(self._send("GET", path, query=query), answer)

    def post(self, path: str, body: Any, answer: type[T], *, idempotency_key: str = "") -> T:
        headers = {"idempotency-key": idempotency_key} if idempotency_key else {}
        return self._decode(self._send("POST", path, body=body, headers=headers), answer)

    @contextmanager
    def events(self, path: str, query: Query | None = None) -> Iterator[Iterator[tuple[str, bytes]]]:
        """Server-sent events as (name, data), until the server ends the stream. Raises `Unreachable` if it breaks."""
        with self._errors():
            http = self._client()
            response = http.send(http.build_request("GET", API + path, params=_present(query)), stream=True)
            try:
                if response.status_code >= 400:
                    raise self._refused(response.status_code, response.read())
                yield parse_events(response.iter_bytes())
            finally:
                response.close()

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        import msgspec

        content = None if body is None else msgspec.json.encode(body)
        sent = {**(headers or {}), **({} if content is None else {"content-type": "application/json"})}
        with self._errors():
            response = self._client().request(method, API + path, params=_present(query), content=content, headers=sent)
        if response.status_code >= 400:
            raise self._refused(response.status_code, response.content)
        return response.content

    def _client(self) -> httpx.Client:
        import httpx

        if self._http is None:
            try:
                here = urlsplit(self._url).hostname in {"localhost", "127.0.0.1", "::1"}
            except ValueError as error:
                raise httpx.InvalidURL(str(error)) from error
            self._http = httpx.Client(
                base_url=self._url,
                headers={"authorization": f"Bearer {self._token}"},
                timeout=self._timeout_s,
                verify=tls_context(self._url),
                trust_env=not here,  # a proxy from the environment does not lead back to this machine
            )
        return self._http

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import httpx

        try:
            yield
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ClientError(f"{self._url!r} is not the URL of an orchestrator, like http://127.0.0.1:4000") from error
        except httpx.TimeoutException as error:
            raise Unreachable(
                f"the orchestrator at {self._url} did not answer within {self._timeout_s:.0f} s"
            ) from error
        except httpx.HTTPError as error:
            raise Unreachable(
                f"the orchestrator at {self._url} cannot be reached ({error}): is it running? `kici up` starts one"
            ) from error

    def _refused(self, status: int, content: bytes) -> Refused:
        if status == 401:
            why = _problem(content)
            return Refused(
                status,
                f"the orchestrator at {self._url} does not accept the token{f' ({why})' if why else ''}:"
                " `kici login` takes another one, and KICI_TOKEN wins over it",
            )
        return Refused(status, _problem(content) or f"the orchestrator answered with HTTP {status}")

    def _decode(self, content: bytes, answer: type[T]) -> T:
        import msgspec

        try:
            return msgspec.json.decode(content, type=answer)
        except msgspec.DecodeError as error:
            raise ClientError(
                f"what answers at {self._url} is no orchestrator that this kici knows: {error}"
            ) from error


def configured(*, timeout_s: float = TIMEOUT_S) -> Client:
    """The client that variables and file describe. Raises `ClientError` where URL or token is missing."""
    url, token = os.environ.get("KICI_URL", ""), os.environ.get("KICI_TOKEN", "")
    if not (url and token):
        remembered = _remembered()
        if url and remembered.get("url", url).rstrip("/") != url.rstrip("/"):
            # A token belongs to its orchestrator: it is not shown to another one.
            raise ClientError(f"KICI_URL names another orchestrator than {config.file()}: set KICI_TOKEN, too")
        url, token = url or remembered.get("url", ""), token or remembered.get("token", "")
    if not (url and token):
        raise ClientError(
            "no orchestrator is configured: start one with `kici up`, or set KICI_URL and KICI_TOKEN, or `kici login`"
            f" ({config.file()} does not name both)"
        )
    return Client(url, token, timeout_s=timeout_s)


def segment(text: str) -> str:
    """As one segment of a path."""
    return quote(text, safe="")


def parse_events(pieces: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """(name, data) of each whole event. Comments are passed over, and what a broken stream ends with.

    Bytes are split at newlines only: log lines hold characters that `str.splitlines` would take for one.
    """
    rest = b""
    for piece in pieces:
        *blocks, rest = (rest + piece).split(b"\n\n")
        for block in blocks:
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line[1:])
            if b"event" in fields:
                yield fields[b"event"].decode(), fields.get(b"data", b"")


def _remembered() -> dict[str, str]:
    try:
        return config.remembered()
    except config.BadConfig as error:
        raise ClientError(str(error)) from error


def _present(query: Query | None) -> dict[str, str]:
    return {name: str(value) for name, value in (query or {}).items() if value is not None}


def _problem(content: bytes) -> str:
    try:
        problem = json.loads(content)
        return "; ".join([str(problem["error"]), *(str(detail) for detail in problem.get("details") or [])])
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
