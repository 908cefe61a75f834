"""The first process in a container, run by its path: it starts one program, reaps orphans, and tells how that ended.

The first process of a PID namespace gets no signal from inside that it does not handle, SIGKILL included, and it is the
parent of every orphan. So it cannot be the runner itself. It has the standard library only.
"""

from __future__ import annotations

import os
import signal
import sys

RUNNER_FD, STATUS_FD, WORDS_FD = 3, 4, 5


def main(argv: list[str]) -> int:
    """The exit code is also written to `STATUS_FD`: 128 + n for signal n."""
    os.set_inheritable(STATUS_FD, False)
    for stream in (1, 2):
        os.dup2(WORDS_FD, stream)
    os.close(WORDS_FD)
    os.set_inheritable(RUNNER_FD, True)
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "HOME", "TMPDIR") if name in os.environ}
    try:
        first = os.posix_spawn(
            argv[0], argv, {"PATH": os.defpath} | kept,
            setsid=True, setsigmask=(), setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM),
        )  # fmt: skip
    except OSError as error:
        os.write(2, f"{argv[0]} cannot be started: {error.strerror}\n".encode())
        return _told(127)
    os.close(RUNNER_FD)
    while True:
        pid, status = os.wait()
        if pid == first:
            code = os.waitstatus_to_exitcode(status)
            return _told(code if code >= 0 else 128 - code)


def _told(code: int) -> int:
    os.write(STATUS_FD, str(code).encode())
    return code


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
