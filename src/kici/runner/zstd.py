"""`python -m kici.runner.zstd [-d]`: the program `zstd` where there is none, from standard input to standard output."""

from __future__ import annotations

import signal
import sys
from typing import IO

LEVEL = 3
MEMORY_BYTES = 128 * 1024 * 1024
"""What a frame may ask for to be unpacked."""


def main(arguments: list[str]) -> int:
    import zstandard

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # like any program
    source, target = sys.stdin.buffer, sys.stdout.buffer
    if "-d" not in arguments:
        zstandard.ZstdCompressor(level=LEVEL, threads=-1).copy_stream(source, target)
        target.flush()
        return 0
    try:
        _unpack(source, target)
    except (zstandard.ZstdError, EOFError) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _unpack(source: IO[bytes], target: IO[bytes]) -> None:
    """Frame after frame. Raises `EOFError` when it is cut off."""
    import zstandard

    unpacker = zstandard.ZstdDecompressor(max_window_size=MEMORY_BYTES)
    frame, data, begun = unpacker.decompressobj(write_size=262_144), b"", False
    while data or (data := source.read(262_144)):
        begun = True
        target.write(frame.decompress(data))
        data = b""
        if frame.eof:
            data = frame.unused_data
            frame, begun = unpacker.decompressobj(write_size=262_144), False
    if begun:
        raise EOFError("the archive is cut off")
    target.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
