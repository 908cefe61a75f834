"""A runner that says what a test wants."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from kici.agent.process_tree import new_tree
from kici.agent.sandbox.contract import Box, BoxSpec
from kici.agent.sandbox.launch import spawn
from kici.agent.sandbox.none import PlainBox


class Impostor:
    """A sandbox whose runner says what a test wants."""

    name = "impostor"

    def __init__(self, *says: str) -> None:
        self._program = (
            "import socket, sys\n"
            f"sys.path.insert(0, {str(Path(__file__).parents[4] / 'src')!r})\n"
            "from kici.wire.runner import *\n"
            "sock = socket.socket(fileno=3)\n"
            "def say(message):\n"
            "    body = from_runner.encode(message)\n"
            "    sock.sendall(len(body).to_bytes(4, 'big') + body)\n"
            "def heard():\n"
            "    size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), 'big')\n"
            "    return from_host.decode(sock.recv(size, socket.MSG_WAITALL))\n"
            "say(Ready(1))\nheard()\n" + "\n".join(says) + "\nsock.recv(1)\n"
        )

    def machine(self) -> Mapping[str, str]:
        return os.environ

    def owner(self, slot: int) -> int | None:
        return None

    async def start(self, spec: BoxSpec, runner_socket: int) -> Box:
        tree = new_tree()
        started = spawn(tree.entered([sys.executable, "-c", self._program]), tree.env(), runner_socket)
        tree.add(started.child.pid)
        return PlainBox(started, tree)
