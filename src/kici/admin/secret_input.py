"""Secrets come from a file, a variable or stdin. They are never an argument: every user of a machine sees those."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def secret_options(command: F) -> F:
    """Adds `--secret-file`, `--from-env` and `--stdin`; `read_secret` takes their values."""
    for option in (
        click.option("--stdin", "from_stdin", is_flag=True, help="Read the secret from stdin."),
        click.option("--from-env", metavar="VAR", help="Take the secret from an environment variable."),
        click.option(
            "--secret-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Read the secret from a file.",
        ),
    ):
        command = option(command)
    return command


def read_secret(secret_file: Path | None, from_env: str | None, from_stdin: bool) -> str:
    """White space around it is dropped: editors leave a newline."""
    ways = [secret_file is not None, from_env is not None, from_stdin]
    if sum(ways) != 1:
        raise click.UsageError("give the secret in one way: --secret-file PATH, --from-env VAR or --stdin")
    if secret_file is not None:
        return _not_empty(read_file(secret_file), str(secret_file))
    if from_env is not None:
        return _not_empty(os.environ.get(from_env, ""), f"the variable {from_env}")
    if sys.stdin.isatty():
        return _not_empty(click.prompt("Secret", hide_input=True, err=True), "what was typed")
    return _not_empty(sys.stdin.read(), "stdin")


def read_file(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file} cannot be read as text: {error}") from None


def _not_empty(value: str, where: str) -> str:
    value = value.strip()
    if not value:
        raise click.ClickException(f"{where} holds no secret")
    return value
