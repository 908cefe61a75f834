"""No sandbox: the runner is a plain child process of the agent.

Kept of the contract: the environment (nothing of the agent's is passed on), one inherited descriptor, a session of
its own, and that `kill` leaves no process behind. **Not kept:** the runner is the same user as the agent. Its steps can
read the agent's files and memory, its token, the host, and other jobs; a root agent's steps are root. `BoxSpec.network`
has no effect. There is no seccomp filter: a job could have the agent, which is the same user, make the call. Use it on
a machine that serves one job and is thrown away, or on a developer's own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from kici.agent import process_tree
from kici.agent.sandbox.contract import Box, BoxSpec, Limits, Usage
from kici.agent.sandbox.launch import Started, runner_argv, runner_env, spawn


class NoSandbox:
    name = "none"

    def machine(self) -> Mapping[str, str]:
        return os.environ

    def owner(self, slot: int) -> int | None:
        return None

    async def start(self, spec: BoxSpec, runner_socket: int) -> Box:
        tree = process_tree.new_tree(spec.limits)
        env = runner_env(str(spec.root / "home"), str(spec.root / "tmp")) | tree.env()
        try:
            started = spawn(tree.entered(runner_argv()), env, runner_socket)
        except BaseException:
            await tree.kill()
            raise
        box = PlainBox(started, tree)
        tree.add(started.child.pid)
        return box


class PlainBox:
    def __init__(self, started: Started, tree: process_tree.ProcessTree) -> None:
        self._started = started
        self._tree = tree
        self._killing: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self._started.child.pid

    async def wait(self) -> int:
        return await self._started.child.wait()

    async def kill(self) -> None:
        if self._killing is None:
            self._killing = asyncio.create_task(self._kill())
        await asyncio.shield(self._killing)

    def path(self, host: Path) -> str:
        return str(host)

    def lower(self, limits: Limits) -> Limits:
        return self._tree.lower(limits)

    def usage(self) -> Usage:
        return self._tree.usage()

    def last_words(self) -> str:
        return self._started.words.text()

    async def _kill(self) -> None:
        try:
            await self._tree.kill()
        except TimeoutError:
            process_tree.report_survivors(self.pid)
        await self._started.child.wait()
        self._started.words.close()
