"""`python -m tests.integration.model.zygote FD`: forks a life whenever it is sent a socket.

Everything that a life needs is imported once, here. There is no event loop, no thread and no connection before the
fork, so a life begins like a process that has just started, in milliseconds.
"""

from __future__ import annotations

import gc
import os
import socket
import sys

from tests.integration.model import life


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    gc.collect()
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 65_536, 1)
        _reap()
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            life.live(socket.socket(fileno=descriptors[0]), message)
            os._exit(0)
        os.close(descriptors[0])
        control.sendall(pid.to_bytes(8, "big"))


def _reap() -> None:
    """Nobody waits for a life: its socket tells of its end."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    main()
