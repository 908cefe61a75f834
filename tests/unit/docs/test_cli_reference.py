"""docs/user/cli.md is what `--help` says, and every command speaks JSON or says why not."""

from __future__ import annotations

import click

from kici.cli.main import program
from tests.support.cli_reference import PAGE, helps, page


def test_the_page_is_what_help_says() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.support.cli_reference`"


def test_every_command_has_json_or_says_why_not() -> None:
    missing = [name for name, text in helps(program, "kici", None) if not _is_group(name) and "--json" not in text]
    assert missing == []


def _is_group(name: str) -> bool:
    command: click.Command = program
    for part in name.split()[1:]:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), part)
        assert found
        command = found
    return isinstance(command, click.Group)
