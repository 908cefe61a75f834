"""The program's entry: global options, and groups that are imported when they are needed.

Nothing here imports asyncio, an HTTP client or a table printer: `kici-admin --help` answers as fast as click can.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from kici import __version__
from kici.errors import KiciError

_GROUPS = {
    "agent": ("kici.admin.commands.agent", "Tokens that let agents connect."),
    "source": ("kici.admin.commands.source", "Senders of webhooks: GitHub and others."),
}


class LazyGroup(click.Group):
    """Knows its groups by name and one line of help; loads one when it runs or shows its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_GROUPS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _GROUPS:
            return None
        module, _ = _GROUPS[cmd_name]
        command = import_module(module).group
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(_GROUPS.items())])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--cli-version", message="%(version)s")
@click.option("-u", "--url", envvar="KICI_ADMIN_URL", help="Base URL of the orchestrator.  [env: KICI_ADMIN_URL]")
@click.option(
    "-t",
    "--token",
    envvar="KICI_ADMIN_TOKEN",
    help="Admin token; the variable keeps it out of the list of processes.  [env: KICI_ADMIN_TOKEN]",
)
@click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
@click.pass_context
def program(ctx: click.Context, url: str | None, token: str | None, debug: bool) -> None:
    """Operate a kici orchestrator.

    URL and token come from the options, the variables, or ~/.kici/config, which `kici up` writes.
    """
    from kici.admin.connection import Connection

    ctx.obj = Connection(url or "", token or "")
    ctx.find_root().meta["debug"] = debug


def run(arguments: Sequence[str]) -> int:
    """The exit code: 0, 1 for what failed, 2 for what was called wrongly."""
    debug = "--debug" in arguments
    try:
        code: Any = program.main(list(arguments), prog_name="kici-admin", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as usage:
        click.echo(usage.format_message(), err=True)
        return 2
    except click.UsageError as usage:
        usage.show()
        return 2
    except click.Abort:
        click.echo("aborted", err=True)
        return 1
    except (KiciError, click.ClickException) as error:
        if debug:
            raise
        click.echo(f"error: {error.message if isinstance(error, click.ClickException) else error}", err=True)
        return 1
    return code if isinstance(code, int) else 0


def main() -> None:
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
