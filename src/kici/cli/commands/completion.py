"""`kici completion`: click's own completion scripts."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that lets SHELL complete kici's commands and options.

    It completes the names of workflows, jobs and runs too. No --json: what it prints is a script.

    bash and zsh: eval "$(kici completion bash)" in the start-up file. fish: kici completion fish | source.
    """
    from click.shell_completion import get_completion_class

    program = context.find_root().command
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(program, {}, "kici", "_KICI_COMPLETE").source())
