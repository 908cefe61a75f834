"""The program's entry: global options, and groups that are imported when they are needed.

Nothing here imports asyncio, an HTTP client or a table printer: `kici-admin --help` answers as fast as click can.
"""

from __future__ import annotations

import sys

import click

from kici import __version__
from kici.program import LazyGroup, run

_GROUPS = {
    "agent": ("kici.admin.commands.agent", "group", "Tokens that let agents connect, and those that are."),
    "caches": ("kici.admin.commands.caches", "group", "Entries of the caches of jobs."),
    "concurrency": ("kici.admin.commands.concurrency", "group", "Concurrency groups: who holds a slot, who waits."),
    "queue": ("kici.admin.commands.queue", "group", "The queue: what waits and why, pauses, caps."),
    "source": ("kici.admin.commands.source", "group", "Senders of webhooks: GitHub and others."),
}


@click.group(cls=LazyGroup, lazy=_GROUPS, context_settings={"help_option_names": ["-h", "--help"]})
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


def main() -> None:
    sys.exit(run(program, "kici-admin", sys.argv[1:]))


if __name__ == "__main__":
    main()
