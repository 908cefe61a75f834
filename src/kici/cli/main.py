"""`kici`: what developers type. `kici --help` imports nothing but click."""

from __future__ import annotations

import sys

import click

from kici import __version__
from kici.program import LazyGroup, run

_COMMANDS = {
    "compile": ("kici.cli.commands.compile", "compile_", "Write .kici/kici.lock.json from the workflows."),
    "completion": ("kici.cli.commands.completion", "completion", "Print a shell's completion script."),
    "diagnostics": (
        "kici.cli.commands.diagnostics",
        "diagnostics",
        "Look at what kici needs here, and what is missing.",
    ),
    "diff": ("kici.cli.commands.diff", "diff", "Say how the workflows differ from the lock file."),
    "docs": ("kici.cli.commands.docs", "docs", "The documentation that fits this version."),
    "endpoints": ("kici.cli.commands.endpoints", "endpoints", "Where the events come in that the workflows wait for."),
    "hook": ("kici.cli.commands.hook", "hook", "The hook that keeps the lock file up to date."),
    "fixture": ("kici.cli.commands.fixture", "fixture", "Print an event, to be run or previewed from a file."),
    "init": ("kici.cli.commands.init", "init", "Make the first workflow of a repository."),
    "login": ("kici.cli.commands.login", "login", "Remember an orchestrator and a token."),
    "logout": ("kici.cli.commands.login", "logout", "Forget the orchestrator and the token."),
    "preview": ("kici.cli.commands.preview", "preview", "Say which jobs an event would run, and why not the others."),
    "run": ("kici.cli.commands.run", "run", "Run workflows."),
    "runs": ("kici.cli.commands.runs", "runs", "The runs of an orchestrator: list, show, logs, cancel, start."),
    "up": ("kici.cli.commands.up", "up", "Start an orchestrator, its database and an agent on this machine."),
    "workflows": ("kici.cli.commands.workflows", "workflows", "The workflows that an orchestrator knows."),
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
