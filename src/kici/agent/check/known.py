"""What hops have found out and later ones go on with."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from contextlib import ExitStack
from pathlib import Path

from kici.agent.sandbox.choose import Choice
from kici.agent.sandbox.contract import Limits
from kici.agent.settings import Settings
from kici.agent.workspace import Workspace
from kici.wire.agent_api import AgentCheck


class Known:
    """A hop that reads something names the hop that writes it among its needs. `leave` at the end, always."""

    settings: Settings
    choice: Choice
    limits: Limits
    space: Workspace
    addresses: list[str]
    """Of the orchestrator, or of the proxy on the way to it."""
    answer: AgentCheck
    asked_at: float
    """When, by this machine's clock: Unix seconds."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self.environ = environ
        self.agent_id = ""
        """Empty: the agent will make one."""
        self.at_end = ExitStack()

    def leave(self) -> None:
        self.at_end.close()

    def hidden(self, text: str) -> str:
        """On one line, and without the token."""
        token = self.settings.agent_token if hasattr(self, "settings") else ""
        return " ".join((text.replace(token, "***") if token else text).split())


def make_directory(path: Path, at_end: ExitStack) -> None:
    """With its parents; those that were not there are gone at the end, if nothing has come into them."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True, mode=0o711)
    for one in reversed(missing):
        at_end.callback(_remove_empty, one)


def _remove_empty(directory: Path) -> None:
    if directory.is_dir() and not os.listdir(directory):
        directory.rmdir()
