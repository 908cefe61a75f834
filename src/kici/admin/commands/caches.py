"""`kici-admin caches`: what jobs have kept for later runs, and a way to let an entry go by hand."""

from __future__ import annotations

from urllib.parse import quote, urlencode

import click

from kici.admin.connection import Connection
from kici.admin.output import json_option, print_json, print_table, time_text
from kici.wire.api import CacheList

PATH = "/api/v1/admin/caches"


@click.group("caches")
def group() -> None:
    """Entries of the caches of jobs."""


@group.command("list")
@click.option("--repo", metavar="OWNER/NAME", help="Of this repository only.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=500, show_default=True)
@json_option
@click.pass_obj
def list_caches(connection: Connection, repo: str | None, limit: int, as_json: bool) -> None:
    """Show the entries that jobs can find, the last used first."""
    asked = {"limit": str(limit)} | ({"repo": repo} if repo else {})
    found = connection.get(f"{PATH}?{urlencode(asked)}", CacheList)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one.id,
            one.repository,
            one.scope or "(default branch)",
            one.key,
            f"{one.size_bytes:,}",
            time_text(one.used_at),
        )
        for one in found.caches
    ]
    if rows:
        print_table(("ID", "REPOSITORY", "SCOPE", "KEY", "BYTES", "LAST USED"), rows)
    else:
        click.echo("No job has kept anything.", err=True)


@group.command("delete")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.pass_obj
def delete(connection: Connection, ids: tuple[str, ...]) -> None:
    """Let entries go: no job finds them any more."""
    for one in ids:
        connection.delete(f"{PATH}/{quote(one, safe='')}")
        click.echo(f"Deleted: {one}")
