"""The artifacts of a local run of one workflow."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

from kici.errors import KiciError

_PIECE_BYTES = 262_144


class ArtifactRefused(KiciError):
    code = "artifact_refused"
    status = 409


class Shelf:
    """One file each, gone with the run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def upload(self, name: str, data: AsyncIterator[bytes]) -> None:
        self._directory.mkdir(exist_ok=True, parents=True)
        temporary = self._directory / f".{name}.{os.urandom(4).hex()}"
        with temporary.open("xb") as file:
            async for piece in data:
                file.write(piece)
        try:
            os.link(temporary, self._directory / name)
        except FileExistsError:
            raise ArtifactRefused(f"this run has an artifact {name!r} already: give it another name") from None
        finally:
            temporary.unlink()

    async def download(self, name: str) -> AsyncGenerator[bytes, None]:
        try:
            file = (self._directory / name).open("rb")
        except FileNotFoundError:
            raise ArtifactRefused(f"no job of this run has uploaded an artifact {name!r}") from None
        with file:
            while piece := file.read(_PIECE_BYTES):
                yield piece
