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
            "import os, socket, sys\n"
            f"sys.path.insert(0, {str(Path(__file__).parents[4] / 'src')!r})\n"
            "from kici.wire.runner import *\n"
            "sock = socket.socket(fileno=3)\n"
            "def say(message):\n"
            "    body = from_runner.encode(message)\n"
            "    sock.sendall(len(body).to_bytes(4, 'big') + body)\n"
            "pipes = []\n"
            "def heard():\n"
            "    size, descriptors, _, _ = socket.recv_fds(sock, 4, 1, socket.MSG_WAITALL)\n"
            "    pipes.extend(descriptors)\n"
            "    return from_host.decode(sock.recv(int.from_bytes(size, 'big'), socket.MSG_WAITALL))\n"
            "def send(begin, data, broken=False):\n"
            "    say(begin)\n"
            "    answer = heard()\n"
            "    if not isinstance(answer, Pipe): return answer\n"
            "    os.write(pipes[0], data)\n"
            "    os.close(pipes.pop(0))\n"
            "    say(ArtifactEnd(answer.request, broken))\n"
            "    return heard()\n"
            "def fetch(message):\n"
            "    say(message)\n"
            "    answer = heard()\n"
            "    if not isinstance(answer, Pipe): return answer\n"
            "    data = open(pipes.pop(0), 'rb').read()\n"
            "    return data, heard()\n"
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
