"""Starting the runner's process: which interpreter, with which files, and no descriptor but those it should have."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

import kici
from kici.agent.sandbox.contract import SandboxUnavailable
from kici.runner.processes import Child
from kici.wire.runner import FD

SOURCE = Path(kici.__file__).resolve().parents[1]
"""The directory that `import kici` finds it in."""
_LAST_WORDS_BYTES = 4096
_FROM_SOURCE = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from kici.runner.__main__ import main; raise SystemExit(main())"
)


def runner_argv() -> list[str]:
    """`python -I -m kici.runner`, also where kici runs from a source tree that only `PYTHONPATH` names."""
    if SOURCE.name in ("site-packages", "dist-packages") and SOURCE.is_relative_to(Path(sys.prefix).resolve()):
        return [sys.executable, "-I", "-m", "kici.runner"]
    return [sys.executable, "-I", "-c", _FROM_SOURCE, str(SOURCE)]


def runner_env(home: str, tmp: str) -> dict[str, str]:
    """Of the runner until it gets its `Start`: nothing of the agent's."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "HOME": home, "TMPDIR": tmp}


def interpreter_paths() -> list[Path]:
    """What must be visible for the runner to start: the interpreter, its packages, kici. Shortest first."""
    wanted = {SOURCE, *map(Path, (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix))}
    wanted |= {path.resolve() for path in wanted}
    wanted |= {hop.parent for hop in _links(Path(sys.executable))}
    return sorted((path for path in wanted if path.is_dir()), key=lambda path: (len(path.parts), path))


def _links(path: Path) -> Iterator[Path]:
    """The file and every symbolic link on the way to it."""
    for _ in range(40):
        yield path
        if not path.is_symlink():
            return
        path = Path(os.path.normpath(path.parent / path.readlink()))


class LastWords:
    """The end of what a child writes to a pipe, read without a task of its own."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor
        self._kept = b""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def text(self) -> str:
        if self._fd >= 0:
            self._read()
        return self._kept.decode(errors="replace").strip()

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self._fd, 65536):
                self._kept = (self._kept + data)[-_LAST_WORDS_BYTES:]
            self.close()


class Started(Struct):
    child: Child
    words: LastWords


def spawn(argv: Sequence[str], env: Mapping[str, str], socket: int, extra: Sequence[int] = ()) -> Started:
    """Start a process in a session of its own with /dev/null as input, its output going to `LastWords`.

    `socket` becomes descriptor 3, `extra` become 4, 5, …; every other descriptor of ours is closed in it, also those
    that somebody has left inheritable. Raises `SandboxUnavailable` if the program cannot be started.
    """
    words_read, words_write = os.pipe()
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    # First to numbers above all others, so that no copy overwrites a source of the next.
    wanted = [null, words_write, words_write, socket, *extra]
    assert FD == 3
    leaking = [fd for fd in _inheritable() if fd > 2]
    spare = 1 + max(*wanted, len(wanted), *leaking)
    actions: list[tuple[int, ...]] = [(os.POSIX_SPAWN_DUP2, fd, spare + n) for n, fd in enumerate(wanted)]
    actions += [(os.POSIX_SPAWN_CLOSE, fd) for fd in leaking]
    actions += [(os.POSIX_SPAWN_DUP2, spare + n, n) for n in range(len(wanted))]
    actions += [(os.POSIX_SPAWN_CLOSE, spare + n) for n in range(len(wanted))]
    try:
        pid = os.posix_spawn(
            argv[0], list(argv), env, file_actions=actions, setsid=True, setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM),
        )  # fmt: skip
    except OSError as error:
        os.close(words_read)
        raise SandboxUnavailable(f"{argv[0]} cannot be started: {error.strerror}") from error
    finally:
        os.close(null)
        os.close(words_write)
    return Started(Child(pid), LastWords(words_read))


def _inheritable() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"):
        with suppress(OSError):  # the descriptor of the listing itself
            if os.get_inheritable(int(name)):
                found.append(int(name))
    return found
