"""How commands reach the orchestrator. The HTTP library is imported with the first request."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeVar

from kici.admin.errors import AdminError
from kici.authorities import tls_context

DEFAULT_URL = "http://127.0.0.1:4000"
_TIMEOUT_S = 30.0

T = TypeVar("T")


class Connection:
    """Options and variables win over the file that `kici up` writes."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token

    def __repr__(self) -> str:
        return f"Connection({self._url!r})"

    def get(self, path: str, answer: type[T]) -> T:
        return self._decode(self._send("GET", path, None), answer)

    def post(self, path: str, body: Any, answer: type[T]) -> T:
        return self._decode(self._send("POST", path, body), answer)

    def delete(self, path: str) -> None:
        self._send("DELETE", path, None)

    def _send(self, method: str, path: str, body: Any) -> bytes:
        """Raises `AdminError` with what the server says."""
        import httpx
        import msgspec

        url, token = self._target()
        try:
            response = httpx.request(
                method,
                f"{url.rstrip('/')}{path}",
                content=None if body is None else msgspec.json.encode(body),
                headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
                timeout=_TIMEOUT_S,
                verify=tls_context(url),
            )
        except httpx.InvalidURL as error:
            raise AdminError(f"{url!r} is not a URL: {error}") from error
        except httpx.TimeoutException as error:
            raise AdminError(f"the orchestrator at {url} did not answer within {_TIMEOUT_S:.0f} s") from error
        except httpx.HTTPError as error:
            raise AdminError(f"the orchestrator at {url} cannot be reached: {error}") from error
        if response.status_code >= 400:
            raise AdminError(f"HTTP {response.status_code}: {_problem(response.content)}")
        return response.content

    def _decode(self, content: bytes, answer: type[T]) -> T:
        import msgspec

        try:
            return msgspec.json.decode(content, type=answer)
        except msgspec.DecodeError as error:
            raise AdminError("the answer is not an orchestrator's: check --url, or the versions differ") from error

    def _target(self) -> tuple[str, str]:
        remembered = {} if self._url and self._token else _remembered()
        token = self._token or remembered.get("token", "")
        if not token:
            raise AdminError("no token: give --token or KICI_ADMIN_TOKEN, or start `kici up`, which writes one down")
        return self._url or remembered.get("url", "") or DEFAULT_URL, token


def config_file() -> Path:
    return Path(os.environ.get("KICI_CONFIG_DIR") or Path.home() / ".kici") / "config"


def _remembered() -> dict[str, str]:
    file = config_file()
    try:
        found = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise AdminError(f"{file} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise AdminError(f"{file} is not an object with url and token")
    return {name: str(found[name]) for name in ("url", "token") if name in found}


def _problem(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return content.decode("utf-8", "replace").strip() or "no reason given"
