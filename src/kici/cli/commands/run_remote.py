"""`kici run remote`: a name that is taken."""

from __future__ import annotations

import click


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--json", "as_json", is_flag=True, hidden=True)
def remote(arguments: tuple[str, ...], as_json: bool) -> None:
    """Run a workflow of the working tree on an orchestrator: not there yet.

    Push the branch, or use `kici run local`, until it is. No --json: it does nothing.
    """
    raise click.UsageError(
        "`kici run remote` is not there yet: use `kici run local`, or push the branch and `kici runs start`"
    )
