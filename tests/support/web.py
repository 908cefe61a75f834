"""A small HTTP server for agents: git repositories over smart HTTP, contexts, artifacts; each behind a token."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit


class Web:
    """`url`/git/NAME serves `repositories`/NAME by git's own http-backend."""

    def __init__(self, repositories: Path, tls: ssl.SSLContext | None = None) -> None:
        self.repositories = repositories
        self.authorization = ""
        """What a request must carry; empty = nothing is asked for."""
        self.contexts: dict[str, bytes] = {}
        self.artifacts: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, str]] = []
        """Method, path with query, authorization."""
        self.bodies: list[bytes] = []
        self.redirect_to = ""
        self.unavailable = 0
        """So many requests more are answered with 503."""
        self.git_allowed = threading.Event()
        self.git_allowed.set()
        self.git_asked = threading.Event()
        self.git_status = 0
        """What requests for repositories are answered with; 0 = as they should be."""
        self.git_protocol_0 = False
        """As servers that give no commit by its name."""
        self.git_bytes = 0
        """That git's own server has answered with so far."""
        self.cut_answers = 0
        """So many answers with packs more end in the middle."""
        self.lfs: dict[str, bytes] = {}
        """SHA-256 → content."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_address[1]}"

    @contextlib.contextmanager
    def running(self) -> Iterator[Web]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self.git_allowed.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        web = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                web._answer(self)

            do_POST = do_PUT = do_GET

        return Handler

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        given = request.headers.get("authorization", "")
        self.requests.append((request.command, request.path, given))
        parts = urlsplit(request.path)
        body = _body(request)
        self.bodies.append(body)
        if self.redirect_to:
            request.send_response(302)
            request.send_header("location", self.redirect_to + request.path)
            request.send_header("content-length", "0")
            request.end_headers()
        elif self.unavailable:
            self.unavailable -= 1
            _send(request, 503, b'{"error": "not now"}')
        elif self.authorization and given != self.authorization:
            _send(request, 403, b'{"error": "this token opens nothing here"}')
        elif "/info/lfs/" in parts.path or parts.path.startswith("/lfs/"):
            self._lfs(request, parts.path, body)
        elif parts.path.startswith("/git/"):
            self.git_asked.set()
            self.git_allowed.wait(30)
            if self.git_status:
                _send(request, self.git_status, b"no")
                return
            with contextlib.suppress(ConnectionError):
                self._git(request, parts.path.removeprefix("/git"), parts.query, body)
        elif parts.path.endswith("/context"):
            _send(request, 200, self.contexts[parts.path.split("/")[-2]])
        elif request.command == "PUT":
            self.artifacts[parts.path.rpartition("/")[2] + "#" + parse_qs(parts.query)["attempt"][0]] = body
            _send(request, 201, b"")
        else:
            stored = self.artifacts.get(parts.path.rpartition("/")[2] + "#" + parse_qs(parts.query)["attempt"][0])
            if stored is None:
                _send(request, 404, b'{"error": "no such artifact"}')
            else:
                _send(request, 200, stored, etag=hashlib.sha256(stored).hexdigest())

    def _lfs(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        """The batch API, and the objects below `/lfs/`."""
        if path.startswith("/lfs/"):
            _send(request, 200, self.lfs[path.removeprefix("/lfs/")])
            return
        objects: list[dict[str, object]] = []
        for wanted in json.loads(body)["objects"]:
            if wanted["oid"] in self.lfs:
                actions = {"download": {"href": f"{self.url}/lfs/{wanted['oid']}"}}
                objects.append({**wanted, "authenticated": True, "actions": actions})
            else:
                objects.append({**wanted, "error": {"code": 404, "message": "Object does not exist"}})
        answer = json.dumps({"transfer": "basic", "objects": objects}).encode()
        request.send_response(200)
        request.send_header("content-type", "application/vnd.git-lfs+json")
        request.send_header("content-length", str(len(answer)))
        request.end_headers()
        request.wfile.write(answer)

    def _git(self, request: BaseHTTPRequestHandler, path: str, query: str, body: bytes) -> None:
        done = subprocess.run(
            ["git", "http-backend"],
            input=body,
            env={
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(self.repositories),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
                "GIT_PROTOCOL": "" if self.git_protocol_0 else request.headers.get("git-protocol", ""),
                "REQUEST_METHOD": request.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": request.headers.get("content-type", ""),
                "HTTP_CONTENT_ENCODING": request.headers.get("content-encoding", ""),
                "CONTENT_LENGTH": str(len(body)),
            },
            capture_output=True,
            check=False,
            timeout=30,
        )
        head, _, answer = done.stdout.partition(b"\r\n\r\n")
        self.git_bytes += len(answer)
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        request.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("content-length", str(len(answer)))
        request.end_headers()
        if self.cut_answers and b"PACK" in answer:
            self.cut_answers -= 1
            answer = answer[: answer.index(b"PACK") + 20]
            request.close_connection = True
        request.wfile.write(answer)


def _body(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("transfer-encoding") != "chunked":
        return request.rfile.read(int(request.headers.get("content-length") or 0))
    pieces = []
    while size := int(request.rfile.readline(), 16):
        pieces.append(request.rfile.read(size))
        request.rfile.readline()
    request.rfile.readline()
    return b"".join(pieces)


def _send(request: BaseHTTPRequestHandler, status: int, body: bytes, *, etag: str = "") -> None:
    request.send_response(status)
    if etag:
        request.send_header("etag", f'"{etag}"')
    request.send_header("content-length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
