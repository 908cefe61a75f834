"""Files as one stream of bytes and back: `tar` and `zstd`, run inside the sandbox as the job, in constant memory.

An archive may be hostile: another job has made it. It is unpacked into a directory of its own, where nothing is yet
that it could write through; what is there afterwards is looked at before it is moved to where it belongs. Entries from
before compression are plain `tar`: the first bytes tell.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

from kici.runner.program import ArtifactFailed, Meter, Program
from kici.runner.zstd import LEVEL, MEMORY_BYTES

SCRATCH_PREFIX = ".kici-unpacking-"
MAX_FILE_BYTES = 64 * 1024**3
"""Of one file, holes included."""
FREE_BYTES = 2 * 1024**3
MAX_RATIO = 100
"""An archive may unpack to `FREE_BYTES` and `MAX_RATIO` times what has come of it: a bomb is stopped soon."""
_RECORDS = "--blocking-factor=512"
"""What `tar` reads and writes at once: 256 KiB; by itself it would be 10, and wake the next program as often."""
_MAGIC = b"\x28\xb5\x2f\xfd"


async def pack(directory: str, members: Sequence[str]) -> AsyncIterator[bytes]:
    """Raises `ArtifactFailed`, also for what `unpack` would refuse for its size."""
    tar = Program(
        ["tar", "--create", "--file=-", "--format=posix", "--pax-option=delete=atime,delete=ctime", "--sparse",
         _RECORDS, f"--directory={directory}", "--null", "--verbatim-files-from", "--files-from=-"]
    )  # fmt: skip
    zstd: Program | None = None
    meter: Meter | None = None
    writing: asyncio.Task[None] | None = None
    made = 0
    try:
        zstd = Program(_zstd())
        meter = tar.into(zstd, lambda: sys.maxsize)
        writing = asyncio.create_task(tar.write_all(b"".join(os.fsencode(member) + b"\0" for member in members)))
        while piece := await zstd.read():
            made += len(piece)
            yield piece
        await writing
        await tar.check()
        await zstd.check()
        if meter.bytes > _allowed(made):
            raise ArtifactFailed(
                f"{meter.bytes:,} bytes of files become {made:,}: such an archive would be refused as a bomb"
            )
    finally:
        await _close(tar, zstd, meter)
        if writing is not None:
            await asyncio.wait([writing])  # the names of a tar that is gone


async def unpack(data: AsyncIterator[bytes], directory: str) -> bool:
    """Into an empty directory. False if there is no data at all. Raises `ArtifactFailed`; what `data` raises comes out.

    Whatever the archive says, nothing outside the directory is touched, and inside there are files, directories and
    symbolic links only, with plain permissions, of the user that runs this.
    """
    pieces = aiter(data)
    head = b""
    while len(head) < len(_MAGIC) and (piece := await anext(pieces, b"")):
        head += piece
    if not head:
        return False
    tar = Program(
        ["tar", "--extract", "--file=-", _RECORDS, f"--directory={directory}", "--no-same-owner",
         "--no-same-permissions"],
        discard_output=True,
    )  # fmt: skip
    zstd: Program | None = None
    meter: Meter | None = None
    came = len(head)
    try:
        tar.limit_files(MAX_FILE_BYTES)
        if head.startswith(_MAGIC):
            zstd = Program(_zstd("-d"))
            meter = zstd.into(tar, lambda: _allowed(came))
        first = zstd or tar
        await first.write(head)
        async for piece in pieces:
            came += len(piece)
            await first.write(piece)
            if meter is not None and meter.is_over:
                break
        first.close_input()
        if meter is not None:
            await meter.ended()
        if meter is not None and meter.is_over:
            raise ArtifactFailed(f"the archive is a bomb: {came:,} bytes of it became {meter.bytes:,}")
        if zstd is not None:
            await zstd.check(may_be_cut=True)
        await tar.check()
    finally:
        await _close(tar, zstd, meter)
    refuse_special(directory)
    return True


@contextmanager
def scratch(beside: str) -> Iterator[str]:
    """An empty directory below `beside`, on its file system, gone afterwards with all that is in it."""
    import tempfile

    top = tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=beside)
    try:
        yield top
    finally:
        remove(top)


def remove(path: str) -> None:
    """Whatever it is, also directories that nobody may write."""
    if os.path.isdir(path) and not os.path.islink(path):
        for folder, folders, _ in os.walk(path):
            for name in folders:
                below = os.path.join(folder, name)
                if not os.path.islink(below):
                    os.chmod(below, 0o700)
        os.chmod(path, 0o700)
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def refuse_special(top: str) -> None:
    """Raises `ArtifactFailed` where there is a device, a pipe or a socket."""
    waiting = [top]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif not entry.is_file(follow_symlinks=False) and not entry.is_symlink():
                    raise ArtifactFailed(f"the archive holds {os.path.relpath(entry.path, top)!r}, which is no file")


def _zstd(*options: str) -> list[str]:
    """Its argv. Both write the same format."""
    if shutil.which("zstd") is None:
        return [sys.executable, "-I", "-m", "kici.runner.zstd", *options]
    if options:
        return ["zstd", "-q", "-d", "-c", f"--memory={MEMORY_BYTES >> 20}MB"]
    return ["zstd", "-q", "-c", f"-{LEVEL}", "-T0"]


def _allowed(came: int) -> int:
    return FREE_BYTES + MAX_RATIO * came


async def _close(tar: Program, zstd: Program | None, meter: Meter | None) -> None:
    await tar.close()
    if zstd is not None:
        await zstd.close()
    if meter is not None:
        await meter.ended()
