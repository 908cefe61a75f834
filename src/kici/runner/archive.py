"""Files as one stream of bytes and back: `tar` and `zstd`, run inside the sandbox as the job, in constant memory.

An archive may be hostile: another job has made it. It is unpacked into a directory of its own, where nothing is yet
that it could write through; what is there afterwards is looked at before it is moved to where it belongs. Entries from
before compression are plain `tar`: the first bytes tell.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kici.runner import pipes
from kici.runner.pipes import Flow, TooMuch
from kici.runner.program import ArtifactFailed, Program, Programs
from kici.runner.zstd import LEVEL, MEMORY_BYTES

SCRATCH_PREFIX = ".kici-unpacking-"
MAX_FILE_BYTES = 64 * 1024**3
"""Of one file, holes included."""
FREE_BYTES = 2 * 1024**3
MAX_RATIO = 100
"""An archive may unpack to `FREE_BYTES` and `MAX_RATIO` times what has come of it: a bomb is stopped soon."""
_RECORDS = "--blocking-factor=512"
"""What `tar` reads and writes at once: 256 KiB; by itself it would be 10, and wake the next program as often."""
_TOTAL = re.compile(r"Total bytes written: ([0-9]+) ")
_MAGIC = b"\x28\xb5\x2f\xfd"


async def pack(directory: str, members: Sequence[str], target: int) -> None:
    """Into the pipe `target`, which stays open.

    Raises `ArtifactFailed`, also for what `unpack` would refuse for its size, and `BrokenPipeError` if nobody reads.
    """
    names = b"".join(os.fsencode(member) + b"\0" for member in members)
    archive = Flow()
    async with Programs() as programs:
        tar = programs.start(
            ["tar", "--create", "--file=-", "--format=posix", "--pax-option=delete=atime,delete=ctime", "--sparse",
             "--totals", _RECORDS, f"--directory={directory}", "--null", "--verbatim-files-from", "--files-from=-"]
        )  # fmt: skip
        zstd = programs.start(_zstd(), source=tar)
        programs.feed(tar, pipes.write(tar.input, names))
        await archive.run(zstd.output, target)
        await programs.fed()
        await tar.check()
        await zstd.check()
        total = _TOTAL.match(tar.said_last())
    if total is None or int(total[1]) > _allowed(archive.bytes):
        files = f"{int(total[1]):,}" if total else "an unknown number of"
        raise ArtifactFailed(
            f"{files} bytes of files become {archive.bytes:,}: such an archive would be refused as a bomb"
        )


async def unpack(source: int, directory: str) -> bool:
    """From the pipe `source`, into an empty directory. False if there is no data at all. Raises `ArtifactFailed`.

    Whatever the archive says, nothing outside the directory is touched, and inside there are files, directories and
    symbolic links only, with plain permissions, of the user that runs this.
    """
    head = b""
    while len(head) < len(_MAGIC) and (piece := await pipes.read(source, len(_MAGIC) - len(head))):
        head += piece
    if not head:
        return False
    async with Programs() as programs:
        tar = programs.start(
            ["tar", "--extract", "--file=-", _RECORDS, f"--directory={directory}", "--no-same-owner",
             "--no-same-permissions"],
            discard_output=True,
        )  # fmt: skip
        tar.limit_files(MAX_FILE_BYTES)
        if head == _MAGIC:
            await _decompress(programs, source, head, tar)
        else:
            programs.feed(tar, Flow().run(source, tar.input, head))
            await programs.fed()
        await tar.check()
    refuse_special(directory)
    return True


async def _decompress(programs: Programs, source: int, head: bytes, tar: Program) -> None:
    zstd = programs.start(_zstd("-d"))
    archive = Flow()
    files = Flow(lambda: _allowed(archive.bytes))
    programs.feed(zstd, archive.run(source, zstd.input, head))
    programs.feed(tar, files.run(zstd.output, tar.input), zstd)
    try:
        await programs.fed()
    except TooMuch:
        raise ArtifactFailed(f"the archive is a bomb: {archive.bytes:,} bytes of it became {files.bytes:,}") from None
    await zstd.check(may_be_cut=True)


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
