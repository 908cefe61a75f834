"""`python -m tests.integration.model.zygote FD`: forks a life whenever it is sent a socket.

Everything that a life needs is imported once, here. There is no event loop, no thread and no connection before the
fork, so a life begins like a process that has just started, in milliseconds.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys

from tests.integration.model import life


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    # Nobody waits for a life: the kernel reaps it, and its socket tells of its end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 65_536, 1)
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            life.live(socket.socket(fileno=descriptors[0]), message)
            os._exit(0)
        os.close(descriptors[0])
        control.sendall(pid.to_bytes(8, "big"))


if __name__ == "__main__":
    main()
