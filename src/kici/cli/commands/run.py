"""`kici run`: the group of ways to run a workflow."""

from __future__ import annotations

import click

from kici.program import LazyGroup

_COMMANDS = {
    "local": ("kici.cli.commands.run_local", "local", "Run a workflow on this machine, without an orchestrator."),
    "remote": ("kici.cli.commands.run_remote", "remote", "Run a working tree on an orchestrator: not there yet."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def run() -> None:
    """Run workflows."""
