"""`kici-admin concurrency`: who holds the slots of concurrency groups, who waits, and a way out by hand."""

from __future__ import annotations

from urllib.parse import urlencode

import click

from kici.admin.connection import Connection
from kici.admin.output import json_option, print_json, print_table, time_text
from kici.wire.api import ConcurrencyList, ConcurrencyRelease, ConcurrencyReleased

PATH = "/api/v1/admin/concurrency"


@click.group("concurrency")
def group() -> None:
    """Concurrency groups: who holds a slot, who waits."""


@group.command("list")
@click.option("--group", "name", metavar="NAME", help="Of this group only.")
@click.option("--repo", metavar="OWNER/NAME", help="Of this repository only.")
@json_option
@click.pass_obj
def list_groups(connection: Connection, name: str | None, repo: str | None, as_json: bool) -> None:
    """Show the groups that are in use, each with its holders and then with those who wait, in their order."""
    asked = {key: value for key, value in (("group", name), ("repo", repo)) if value}
    found = connection.get(f"{PATH}?{urlencode(asked)}" if asked else PATH, ConcurrencyList)
    if as_json:
        print_json(found)
        return
    rows = [
        (one.group, one.scope, what, slot.run_id, slot.job_name or "(whole run)", slot.state, time_text(slot.since))
        for one in found.groups
        for what, slots in (("holds", one.holders), ("waits", one.waiters))
        for slot in slots
    ]
    if rows:
        print_table(("GROUP", "SCOPE", "", "RUN", "JOB", "STATUS", "SINCE"), rows)
    else:
        click.echo("No concurrency group is in use.", err=True)


@group.command("release")
@click.argument("name", metavar="GROUP")
@click.option("--scope", help="Needed only where several scopes use the name: `list` shows them.")
@click.option("--run", "run_id", metavar="ID", help="Take the slot from this run and its jobs only.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@click.pass_obj
def release(connection: Connection, name: str, scope: str | None, run_id: str | None, yes: bool, as_json: bool) -> None:
    """Take the slots of GROUP from their holders and hand them to those who wait.

    The holders are not stopped: cancel their runs for that, which hands the slot over by itself.
    """
    whose = f"run {run_id}" if run_id else "its holders"
    if not yes and not click.confirm(f"Take the slots of {name} from {whose}, which run on?", err=True):
        click.echo("Cancelled.", err=True)
        return
    done = connection.post(f"{PATH}/release", ConcurrencyRelease(name, scope, run_id), ConcurrencyReleased)
    if as_json:
        print_json(done)
        return
    for one in done.released:
        click.echo(f"Released: {_shown(one.run_id, one.job_id)}")
    for one in done.started:
        click.echo(f"Started:  {_shown(one.run_id, one.job_id)}")


def _shown(run_id: str, job_id: str | None) -> str:
    return f"run {run_id}" if job_id is None else f"run {run_id}, job {job_id}"
