"""A forge for tests: real repositories behind git's own HTTP server (`git http-backend`), which can fail at will."""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from typing import Any


class Forge:
    """ASGI application. `base` is the directory with the repositories."""

    def __init__(self, base: Path, *, password: str = "") -> None:
        self.base = base
        self.password = password
        self.down = False
        """Answers 503 to everything."""
        self.requests: list[str] = []
        """Method and path, in order."""

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.requests.append(f"{scope['method']} {scope['path']}")
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        expected = "Basic " + base64.b64encode(f"x-access-token:{self.password}".encode()).decode()
        if self.down:
            await _answer(send, 503, [], b"away")
        elif self.password and headers.get("authorization") != expected:
            await _answer(send, 401, [(b"www-authenticate", b'Basic realm="forge"')], b"no")
        else:
            await _answer(send, *await self._backend(scope, headers, body))

    async def _backend(
        self, scope: dict[str, Any], headers: dict[str, str], body: bytes
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        process = await asyncio.create_subprocess_exec(
            "git",
            "http-backend",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(self.base),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_CONFIG_GLOBAL": "/dev/null",
                "GIT_PROTOCOL": headers.get("git-protocol", ""),
                "HTTP_CONTENT_ENCODING": headers.get("content-encoding", ""),
                "CONTENT_TYPE": headers.get("content-type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "PATH_INFO": scope["path"],
                "QUERY_STRING": scope["query_string"].decode(),
                "REQUEST_METHOD": scope["method"],
                "REMOTE_ADDR": "127.0.0.1",
            },
        )
        output, _ = await process.communicate(body)
        head, _, content = output.partition(b"\r\n\r\n")
        fields = [tuple(line.split(b": ", 1)) for line in head.split(b"\r\n")]
        status = next((int(value.split()[0]) for name, value in fields if name == b"Status"), 200)
        return status, [(name.lower(), value) for name, value in fields if name != b"Status"], content


async def _answer(send: Any, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
