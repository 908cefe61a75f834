"""What an example promises: its `example.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

Place = Literal["here", "agent"]


class Preview(Struct, frozen=True, forbid_unknown_fields=True):
    options: tuple[str, ...]
    """Of `kici preview`."""
    runs: tuple[str, ...] = ()
    """All jobs that would run, of all workflows that would start."""
    skipped: Mapping[str, str] = {}
    """All jobs that would not → a part of the reason."""
    not_started: Mapping[str, str] = {}
    """All workflows that would not start → a part of the reason."""


class Run(Struct, frozen=True, forbid_unknown_fields=True):
    event: Literal["push", "tag", "manual", "dispatch", "schedule", "kici_event", "workflow_complete"]
    """The last two follow from a push: on an agent that is pushed, and the run that it leads to is waited for."""
    workflow: str
    ref: str = "main"
    changed: tuple[str, ...] = ()
    """Files that the pushed commit changes. Without any it changes a file that no workflow knows."""
    inputs: Mapping[str, str] = {}
    where: tuple[Place, ...] = ()
    """All places of the example if left out."""
    status: str = "success"
    jobs: Mapping[str, str | tuple[str, ...]] = {}
    """All jobs → how each ends, or how it may end."""
    reasons: Mapping[str, str] = {}
    """Job → a part of what is said about its end."""
    steps: Mapping[str, Mapping[str, str]] = {}
    """Job → step → how it ends. Steps that are not named are not looked at."""
    outputs: Mapping[str, Mapping[str, Any]] = {}
    """Job → step → what it returned; `"*"` for anything, in place of any part of it. Others are not looked at."""
    artifacts: tuple[str, ...] = ()
    """All of them. `kici run local` keeps none, so they are looked at on an agent."""


class Example(Struct, frozen=True, forbid_unknown_fields=True):
    where: tuple[Place, ...]
    runs: tuple[Run, ...]
    previews: tuple[Preview, ...] = ()
    not_on_an_agent: str = ""
    """Why, if `agent` is not among `where`."""
    needs_tools: tuple[str, ...] = ()
    """Programs that must be on PATH."""
    secrets: str = ""
    """File of the example that takes the place of `.kici/.secrets`."""
    agent_env: Mapping[str, str] = {}
    """Settings of the agent."""


def read(directory: Path) -> Example:
    """Raises `msgspec.ValidationError`, or `ValueError` for one that says nothing about agents."""
    example = msgspec.convert(tomllib.loads((directory / "example.toml").read_text()), Example)
    if ("agent" in example.where) == bool(example.not_on_an_agent):
        raise ValueError(f'{directory.name}: say either where = [… "agent"] or not_on_an_agent = "why"')
    return example
