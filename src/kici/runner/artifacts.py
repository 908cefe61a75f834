"""`ctx.artifacts`: files go to the host as an archive in pieces, and come back so: whole or not at all."""

from __future__ import annotations

import asyncio
import glob
import os
from collections.abc import Sequence
from functools import partial

from kici.runner.archive import pack, scratch, unpack
from kici.runner.placing import lay_over
from kici.runner.program import ArtifactFailed
from kici.runner.shell import Activity, Doing
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
            await self._transfers.store(name, partial(pack, self._root, [os.path.join(".", one) for one in members]))

        return Doing(self._activity, upload)

    def download(self, name: str, /, into: str | os.PathLike[str] = ".") -> Doing[list[str]]:
        async def download() -> list[str]:
            directory = os.path.join(self._root, into)
            os.makedirs(directory, exist_ok=True)
            with scratch(directory) as top:
                await self._transfers.fetch(name, partial(unpack, directory=top))
                unpacked = await asyncio.to_thread(lay_over, top, directory)
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
