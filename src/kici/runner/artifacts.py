"""`ctx.artifacts`: files packed by `tar` go to the host in pieces, and come back so. Nothing is kept on the way."""

from __future__ import annotations

import asyncio
import glob
import itertools
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from kici.errors import KiciError
from kici.runner.link import Link
from kici.runner.processes import Child
from kici.runner.shell import Activity, Doing
from kici.wire.runner import ArtifactBegin, ArtifactData, ArtifactEnd, ArtifactFetch, Reply

_PIECE_BYTES = 262_144
_AHEAD = 16
"""Pieces of a download that wait to be unpacked."""


class ArtifactFailed(KiciError):
    """Files could not be stored or fetched. The message says which and why."""

    code = "artifact_failed"
    status = 422


class Transfers:
    """Requests to the host about artifacts, and its answers."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Queue[bytes | Reply]] = {}

    async def answered(self, message: Reply | ArtifactData) -> None:
        """From the host. Waits while what came before is not yet unpacked."""
        answers = self._answers.get(message.request)
        if answers is not None:
            await answers.put(message if isinstance(message, Reply) else message.data)

    async def store(self, name: str, data: AsyncIterator[bytes]) -> None:
        request, answers = self._open()
        try:
            await self._link.post(ArtifactBegin(request, name))
            async for piece in data:
                await self._link.post(ArtifactData(request, piece))
            await self._link.post(ArtifactEnd(request))
            answer = await answers.get()
            if isinstance(answer, bytes) or answer.error:
                raise ArtifactFailed(f"artifact {name!r} was not stored: {_error(answer)}")
        finally:
            self._close(request)

    async def fetch(self, name: str) -> AsyncIterator[bytes]:
        request, answers = self._open()
        try:
            await self._link.post(ArtifactFetch(request, name))
            while isinstance(answer := await answers.get(), bytes):
                yield answer
            if answer.error:
                raise ArtifactFailed(f"artifact {name!r} was not fetched: {answer.error}")
        finally:
            self._close(request)

    def _open(self) -> tuple[int, asyncio.Queue[bytes | Reply]]:
        request = next(self._numbers)
        self._answers[request] = asyncio.Queue(_AHEAD)
        return request, self._answers[request]

    def _close(self, request: int) -> None:
        answers = self._answers.pop(request)
        while not answers.empty():  # lets go of a host's answer that waits for room
            answers.get_nowait()


def _error(answer: bytes | Reply) -> str:
    return answer.error if isinstance(answer, Reply) else "the host sent data instead of an answer"


class Artifacts:
    """A `kici.sdk.context.Artifacts`."""

    def __init__(self, activity: Activity, transfers: Transfers, root: str) -> None:
        self._activity = activity
        self._transfers = transfers
        self._root = root

    def upload(self, name: str, paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], /) -> Doing[None]:
        async def upload() -> None:
            several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
            members = _members(self._root, [os.fspath(path) for path in several])
            await self._transfers.store(name, _packed(self._root, members))

        return Doing(self._activity, upload)

    def download(self, name: str, /, into: str | os.PathLike[str] = ".") -> Doing[list[str]]:
        async def download() -> list[str]:
            directory = os.path.join(self._root, into)
            os.makedirs(directory, exist_ok=True)
            unpacked = await _unpacked(directory, self._transfers.fetch(name))
            return [os.path.normpath(os.path.join(into, path)) for path in unpacked]

        return Doing(self._activity, download)


def _members(root: str, paths: Sequence[str]) -> list[str]:
    """What the paths and globs name, relative to the root. Raises `ArtifactFailed`."""
    found: dict[str, None] = {}
    for path in paths:
        relative = os.path.relpath(os.path.join(root, path), root)
        if relative == os.pardir or relative.startswith(os.pardir + os.sep):
            raise ArtifactFailed(f"{path!r} is outside the checkout: copy it into the checkout first")
        named = [relative] if os.path.lexists(os.path.join(root, relative)) else []
        if not named:
            named = sorted(glob.glob(relative, root_dir=root, recursive=True, include_hidden=True))
        if not named:
            raise ArtifactFailed(f"{path!r} names no file in the checkout")
        for one in named:
            real = os.path.realpath(os.path.join(root, os.path.dirname(one)))
            if not (real + os.sep).startswith(os.path.realpath(root) + os.sep):
                raise ArtifactFailed(f"{path!r} leads outside the checkout by a symbolic link: copy it first")
            found[one] = None
    if not found:
        raise ArtifactFailed("no path is given")
    return list(found)


async def _packed(root: str, members: Sequence[str]) -> AsyncIterator[bytes]:
    names = b"".join(os.fsencode(os.path.join(".", member)) + b"\0" for member in members)
    tar = _Tar(
        ["tar", "--create", "--file=-", f"--directory={root}", "--null", "--verbatim-files-from", "--files-from=-"]
    )
    writing = asyncio.create_task(tar.write_all(names))
    try:
        while piece := await tar.read():
            yield piece
        await writing
        await tar.check()
    finally:
        writing.cancel()
        tar.close()


async def _unpacked(directory: str, data: AsyncIterator[bytes]) -> list[str]:
    tar = _Tar(
        [
            "tar", "--extract", "--file=-", f"--directory={directory}", "--no-same-owner", "--no-same-permissions",
            "--verbose", "--quoting-style=literal",
        ]
    )  # fmt: skip
    listing = asyncio.create_task(tar.read_all())
    try:
        async for piece in data:
            await tar.write(piece)
        tar.close_input()
        names = await listing
        await tar.check()
    finally:
        listing.cancel()
        tar.close()
    members = (os.path.normpath(os.fsdecode(name)) for name in names.split(b"\n") if name and not name.endswith(b"/"))
    return sorted(members)


class _Tar:
    """The program, with both ends as pipes. It is a child like a command of the step, and ends with it."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, bufsize=0,
            start_new_session=True, env=os.environ | {"LC_ALL": "C"},
        )  # fmt: skip
        self._child = Child(self._process.pid, on_exit=self._ended)
        self._loop = asyncio.get_running_loop()

    def _ended(self, code: int) -> None:
        self._process.returncode = code

    async def read(self) -> bytes:
        assert self._process.stdout
        return await self._loop.run_in_executor(None, self._process.stdout.read, _PIECE_BYTES) or b""

    async def read_all(self) -> bytes:
        pieces = []
        while piece := await self.read():
            pieces.append(piece)
        return b"".join(pieces)

    async def write_all(self, data: bytes) -> None:
        await self.write(data)
        self.close_input()

    async def write(self, data: bytes) -> None:
        await self._loop.run_in_executor(None, self._write, data)

    def _write(self, data: bytes) -> None:
        assert self._process.stdin
        view = memoryview(data)
        with suppress(BrokenPipeError):  # its exit code will say why
            while view:
                view = view[self._process.stdin.write(view) or 0 :]

    def close_input(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()

    async def check(self) -> None:
        """Raises `ArtifactFailed` unless it ended well."""
        if await self._child.wait():
            self._said.seek(0)
            lines = self._said.read(4096).decode(errors="replace").strip().splitlines()
            raise ArtifactFailed(f"tar failed: {lines[0] if lines else f'exit code {self._child.returncode}'}")

    def close(self) -> None:
        self._child.signal(9)
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            if pipe and not pipe.closed:
                pipe.close()
