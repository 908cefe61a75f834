"""`ctx.artifacts`: files packed by `tar` go to the host in pieces, and come back so. Nothing is kept on the way."""

from __future__ import annotations

import asyncio
import glob
import os
from collections.abc import AsyncIterator, Sequence

from kici.runner.shell import Activity, Doing
from kici.runner.tar import ArtifactFailed, Tar
from kici.runner.transfers import Transfers


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
    tar = Tar(
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
    tar = Tar(
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
