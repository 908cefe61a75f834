"""`kici hook install`."""

from __future__ import annotations

import click


@click.group()
def hook() -> None:
    """The hook that keeps the lock file up to date with each commit."""


@hook.command()
@click.option("--git", "raw", is_flag=True, help="A hook of git itself, whatever manager of hooks is here.")
@click.option("--json", "as_json", is_flag=True, help="Say what was done as JSON.")
def install(raw: bool, as_json: bool) -> None:
    """Compile before each commit that changes something under .kici/.

    In .pre-commit-config.yaml if it is there (pre-commit, prek), in .husky/pre-commit, else as a hook of git itself.
    Nothing happens if it is installed already.
    """
    import json

    from kici.cli import hooks, repository

    done = hooks.install(repository.root(), raw=raw)
    if as_json:
        click.echo(json.dumps({"manager": done.manager, "path": done.path, "installed": done.new}))
    else:
        click.echo(f"installed in {done.path}" if done.new else f"{done.path} has it already")
