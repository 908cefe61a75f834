"""`kici`: what developers type. `kici --help` imports nothing but click."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from kici import __version__
from kici.cli.lazy import LazyGroup
from kici.errors import KiciError

_COMMANDS = {
    "compile": ("kici.cli.commands.compile", "compile_", "Write .kici/kici.lock.json from the workflows."),
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


def run(arguments: Sequence[str]) -> int:
    """The exit code: 0, 1 for what failed, 2 for what was called wrongly."""
    try:
        code: Any = program.main(list(arguments), prog_name="kici", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as usage:
        click.echo(usage.format_message(), err=True)
        return 2
    except click.UsageError as usage:
        usage.show()
        return 2
    except click.Abort:
        click.echo("aborted", err=True)
        return 130
    except (KiciError, click.ClickException) as error:
        if "--debug" in arguments:
            raise
        click.echo(f"error: {error.message if isinstance(error, click.ClickException) else error}", err=True)
        return 1
    return code if isinstance(code, int) else 0


def main() -> None:
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
