"""The test's hold on lives: begin one, ask it, kill it at any moment."""

from __future__ import annotations

import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tests.integration.model import messages
from tests.integration.model.life import Birth
from tests.integration.model.messages import LENGTH, Answer, Body, Request

PATIENCE_S = 20.0
"""Nothing that is asked of a life takes so long."""


class Zygote:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._names = itertools.count(1)

    def begin(self, database_url: str, *, max_attempts: int) -> Life:
        instance = f"coordinator-{next(self._names)}"
        ours, theirs = socket.socketpair()
        with theirs:
            birth = msgspec.msgpack.encode(Birth(database_url, instance, max_attempts))
            socket.send_fds(self._control, [birth], [theirs.fileno()])
            pid = int.from_bytes(self._control.recv(8), "big")
        return Life(instance, ours, os.pidfd_open(pid))


@contextmanager
def zygote() -> Iterator[Zygote]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.model.zygote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        theirs.close()
        try:
            yield Zygote(ours)
        finally:
            ours.close()
            try:
                process.wait(PATIENCE_S)
            finally:
                process.kill()


class Life:
    """`asked` holds what has no answer yet."""

    def __init__(self, instance: str, socket: socket.socket, pidfd: int) -> None:
        self.instance = instance
        self.asked: dict[int, Body] = {}
        self._socket = socket
        self._pidfd = pidfd
        self._numbers = itertools.count(1)
        self._buffer = bytearray()
        self._ready = False
        self.ended = False

    def wait_ready(self) -> None:
        while not self._ready:
            self._receive()
            for body, answer in self._parsed():
                assert body is None
                assert isinstance(answer, messages.Ready), answer
                self._ready = True

    def ask(self, body: Body) -> None:
        number = next(self._numbers)
        self.asked[number] = body
        self._socket.sendall(messages.packed(Request(number, body)))

    def answers(self, *, until: float) -> list[tuple[Body, Answer]]:
        """What has come by then (of the monotonic clock), or earlier if nothing is owed any more."""
        found: list[tuple[Body, Answer]] = []
        while self.asked and (left := until - time.monotonic()) > 0:
            readable, _, _ = select.select([self._socket], [], [], left)
            if not readable:
                break
            self._receive()
            found += [(body, answer) for body, answer in self._parsed() if body is not None]
        return found

    def kill(self) -> list[tuple[Body, Answer]]:
        """SIGKILL. Returns what it had answered before that and was not read yet."""
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        found: list[tuple[Body, Answer]] = []
        while not self.ended:
            self._receive(may_end=True)
            found += [(body, answer) for body, answer in self._parsed() if body is not None]
        self.close()
        return found

    def close(self) -> None:
        """Let it end by itself, if it has not. It may take a moment."""
        self._socket.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _receive(self, *, may_end: bool = False) -> None:
        readable, _, _ = select.select([self._socket], [], [], PATIENCE_S)
        assert readable, f"{self.instance} does not answer {list(self.asked.values())}"
        try:
            data = self._socket.recv(1_048_576)
        except ConnectionResetError:
            data = b""
        self._buffer += data
        if not data:
            self.ended = True
            assert may_end, f"{self.instance} has ended by itself"

    def _parsed(self) -> Iterator[tuple[Body | None, Answer]]:
        while len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            end = LENGTH.size + length
            if len(self._buffer) < end:
                return
            response = messages.response(bytes(self._buffer[LENGTH.size : end]))
            del self._buffer[:end]
            yield self.asked.pop(response.number, None), response.body
