"""What our command-line programs share: commands that are imported when they run, and how a program ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from kici.errors import KiciError

INTERRUPTED = 130


class LazyGroup(click.Group):
    """`lazy`: name → (module, attribute, one line of help). A mistyped name is answered with the nearest one."""

    def __init__(self, *args: object, lazy: Mapping[str, tuple[str, str, str]], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self._lazy, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, attribute, _ = self._lazy[cmd_name]
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table: nothing is imported for it."""
        rows = {name: text for name, (_, _, text) in self._lazy.items()}
        rows |= {name: command.get_short_help_str() for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted(rows.items()))


def run(program: click.Group, name: str, arguments: Sequence[str]) -> int:
    """The exit code: 0, 1 for what failed, 2 for what was called wrongly. Tracebacks only with `--debug`."""
    try:
        code: Any = program.main(list(arguments), prog_name=name, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as usage:
        click.echo(usage.format_message(), err=True)
        return 2
    except click.UsageError as usage:
        usage.show()
        return 2
    except click.Abort:
        click.echo("aborted", err=True)
        return INTERRUPTED
    except (KiciError, click.ClickException) as error:
        if "--debug" in arguments:
            raise
        click.echo(f"error: {error.message if isinstance(error, click.ClickException) else error}", err=True)
        return 1
    return code if isinstance(code, int) else 0
