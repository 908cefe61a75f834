"""A package index on loopback, with a public part and a private one behind a password; its wheels are made by hand."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import os
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from kici.dependencies.uv import find_uv

USER, PASSWORD = "builder", "s3cr3t-of-the-index"
TOKEN_USER = "__token__"
"""Whose password is `PASSWORD` too."""


class PackageIndex:
    """`url`/public/simple is open, `url`/private/simple wants `USER` and `PASSWORD`. Both have the same packages."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.moved_to = ""
        """Address of another index, to which requests for private files are sent on."""
        self.requests: list[tuple[str, str]] = []
        """Path, authorization."""
        self.allowed = threading.Event()
        self.allowed.set()
        """While it is not, nothing is answered."""
        self.asked = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextlib.contextmanager
    def running(self) -> Iterator[PackageIndex]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self.allowed.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def add(self, name: str, version: str, files: Mapping[str, bytes | str]) -> None:
        """A wheel."""
        about = f"{name}-{version}.dist-info"
        content: dict[str, bytes | str] = {
            **files,
            f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        content[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in (*content, f"{about}/RECORD"))
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as wheel:
            for path, data in content.items():
                wheel.writestr(path, data)
        self.files[f"{name}-{version}-py3-none-any.whl"] = packed.getvalue()

    def add_source(self, name: str, version: str, setup: str) -> None:
        """No wheel: to install it, its backend must run. `setup` is the body of the backend's module."""
        about = f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n"
        project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        project += f'[project]\nname = "{name}"\nversion = "{version}"\n'
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for path, text in (("PKG-INFO", about), ("pyproject.toml", project), ("backend.py", setup)):
                entry = tarfile.TarInfo(f"{name}-{version}/{path}")
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
        self.files[f"{name}-{version}.tar.gz"] = packed.getvalue()

    def project(self, *dependencies: str, part: str = "public") -> dict[str, str]:
        """`.kici/pyproject.toml` and `.kici/uv.lock`, as files of a repository."""
        wanted = ", ".join(f'"{one}"' for one in dependencies)
        text = f'[project]\nname = "workflows"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = [{wanted}]\n'
        text += f'\n[[tool.uv.index]]\nname = "inner"\nurl = "{self.url}/{part}/simple"\ndefault = true\n'
        return {".kici/pyproject.toml": text, ".kici/uv.lock": self._lock(text)}

    def paths(self) -> list[str]:
        return [path for path, _ in self.requests]

    def _lock(self, project: str) -> str:
        import tempfile

        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "pyproject.toml").write_text(project)
            subprocess.run(
                [find_uv(), "lock", "--quiet"],
                cwd=directory,
                env={
                    "PATH": os.environ["PATH"],
                    "UV_CACHE_DIR": f"{directory}/cache",
                    "UV_PYTHON_DOWNLOADS": "never",
                    "UV_INDEX_INNER_USERNAME": USER,
                    "UV_INDEX_INNER_PASSWORD": PASSWORD,
                },
                check=True,
                timeout=60,
            )
            self.requests.clear()
            return (Path(directory) / "uv.lock").read_text()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        index = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                index._answer(self)

            do_HEAD = do_GET

        return Handler

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        given = request.headers.get("authorization", "")
        self.requests.append((request.path, given))
        self.asked.set()
        self.allowed.wait(60)
        part, kind, name = request.path.strip("/").split("/", 2)
        expected = ["Basic " + base64.b64encode(f"{user}:{PASSWORD}".encode()).decode() for user in (USER, TOKEN_USER)]
        if part == "private" and self.moved_to and kind == "files":
            self._send(request, 302, b"", ("location", f"{self.moved_to}/public/files/{name}"))
        elif part == "private" and given not in expected:
            self._send(request, 401, b"", ("www-authenticate", 'Basic realm="index"'))
        elif kind == "simple":
            links = (
                f'<a href="../../files/{file}#sha256={hashlib.sha256(data).hexdigest()}">{file}</a>'
                for file, data in sorted(self.files.items())
                if file.startswith(f"{name}-")
            )
            self._send(request, 200, "\n".join(links).encode(), ("content-type", "text/html"))
        elif name in self.files:
            self._send(request, 200, self.files[name], ("content-type", "application/octet-stream"))
        else:
            self._send(request, 404, b"")

    def _send(self, request: BaseHTTPRequestHandler, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        with contextlib.suppress(ConnectionError):
            request.send_response(status)
            for header in headers:
                request.send_header(*header)
            request.send_header("content-length", str(len(body)))
            request.end_headers()
            if request.command != "HEAD":
                request.wfile.write(body)
