"""`kici workflows`: what an orchestrator knows of the default branches."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import click

_AGE = re.compile(r"([0-9]+)([dhw])")
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}


@click.group()
def workflows() -> None:
    """The workflows that an orchestrator knows."""


@workflows.command("list")
@click.option("--repo", help="Of this repository.")
@click.option("--trigger-type", help="With a trigger of this kind, like manual.")
@click.option("--stale", metavar="AGE", help="Not pushed to for so long: 12h, 30d, 8w.")
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True)
@click.option("--offset", type=click.IntRange(0), default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def list_workflows(
    repo: str | None, trigger_type: str | None, stale: str | None, limit: int, offset: int, as_json: bool
) -> None:
    """List the workflows that the default branches have registered.

    These answer to events without a commit of their own: manual starts, webhooks, schedules.
    """
    from kici.cli import client as clients
    from kici.cli.tables import print_table, time_of
    from kici.wire import api

    before = (datetime.now(UTC) - _age(stale)).isoformat() if stale else None
    query = {"repo": repo, "triggerType": trigger_type, "notSince": before, "limit": limit, "offset": offset}
    with clients.configured() as client:
        found = client.get("/workflows", api.RegistrationList, query)
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    elif not found.workflows:
        click.echo("No workflows found. They are registered when a default branch with a lock file is pushed.")
    else:
        rows = [
            (
                one.repo_identifier,
                one.workflow_name + (" (disabled)" if one.disabled else ""),
                ", ".join(one.trigger_types),
                one.default_branch or "-",
                (one.commit_sha or "-")[:7],
                time_of(one.updated_at),
            )
            for one in found.workflows
        ]
        print_table(("repo", "workflow", "triggers", "branch", "sha", "pushed"), rows)
        click.echo(f"Showing {len(rows)} of {found.total} (offset {found.offset}, limit {found.limit})")


def _age(text: str) -> timedelta:
    found = _AGE.fullmatch(text)
    if not found:
        raise click.UsageError(f"--stale: {text!r} is no age: write 12h, 30d or 8w")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
