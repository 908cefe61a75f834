"""`kici`: what developers type. `kici --help` imports nothing but click."""

from __future__ import annotations

import sys

import click

from kici import __version__
from kici.program import LazyGroup, run

_COMMANDS = {
    "compile": ("kici.cli.commands.compile", "compile_", "Write .kici/kici.lock.json from the workflows."),
    "completion": ("kici.cli.commands.completion", "completion", "Print a shell's completion script."),
    "diff": ("kici.cli.commands.diff", "diff", "Say how the workflows differ from the lock file."),
    "fixture": ("kici.cli.commands.fixture", "fixture", "Print an event, to be run or previewed from a file."),
    "init": ("kici.cli.commands.init", "init", "Make the first workflow of a repository."),
    "preview": ("kici.cli.commands.preview", "preview", "Say which jobs an event would run, and why not the others."),
    "run": ("kici.cli.commands.run", "run", "Run workflows."),
    "runs": ("kici.cli.commands.runs", "runs", "The runs of an orchestrator: list, show, logs, cancel, start."),
    "up": ("kici.cli.commands.up", "up", "Start an orchestrator, its database and an agent on this machine."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(version)s")
@click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
def program(debug: bool) -> None:
    """CI/CD whose workflows are Python code."""


def main() -> None:
    sys.exit(run(program, "kici", sys.argv[1:]))


if __name__ == "__main__":
    main()
