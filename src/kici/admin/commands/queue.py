"""`kici-admin queue`: what waits and why, pauses, caps."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote, urlencode

import click

from kici.admin.connection import Connection
from kici.admin.output import json_option, print_json, print_table, time_text
from kici.engine.waiting import duration
from kici.wire import api

PATH = "/api/v1/admin/queue"
LOOK_S = 1.0


@click.group("queue")
def group() -> None:
    """The queue: what waits and why, pauses, caps."""


@group.command("stats")
@json_option
@click.pass_obj
def stats(connection: Connection, as_json: bool) -> None:
    """Show depths and ages, lanes that no agent serves, pauses and caps."""
    found = connection.get(f"{PATH}/stats", api.QueueStats)
    if as_json:
        print_json(found)
        return
    about = "about " if found.pending_is_estimate else ""
    oldest = f", the oldest for {duration(found.oldest_seconds)}" if found.pending else ""
    later = f" ({_count(found.delayed, found.delayed > 1_000)} of them for their next attempt)" if found.delayed else ""
    click.echo(f"Waiting:     {about}{found.pending}{later}{oldest}")
    click.echo(f"Dispatched:  {found.dispatched}")
    click.echo(f"Running:     {found.running}")
    for pause in found.pauses:
        click.echo(f"Paused:      {_pause(pause)}")
    if found.repositories:
        click.echo()
        print_table(
            ("REPOSITORY", "WAITING", "RUNNING", "CAP", "OLDEST"),
            [
                (
                    one.repository,
                    _count(one.pending, one.more),
                    str(one.running),
                    "-" if one.cap is None else str(one.cap),
                    duration(one.oldest_seconds) if one.pending else "-",
                )
                for one in found.repositories
            ],
        )
    if found.label_sets:
        click.echo()
        print_table(
            ("LABELS", "WAITING", "OLDEST", "AGENT"),
            [
                (
                    ", ".join(one.labels) or "(any)",
                    _count(one.pending, one.more),
                    duration(one.oldest_seconds),
                    "yes" if one.has_agent else "NONE",
                )
                for one in found.label_sets
            ],
        )
    if found.lanes_left_out:
        click.echo("There are more lanes than are shown.", err=True)


@group.command("list")
@click.option("--status", type=click.Choice(["pending", "dispatched"]), help="Waits, or an agent has it.")
@click.option("--status-not-in", metavar="A,B", help="None of these.")
@click.option("--job-name-prefix")
@click.option("--job-name")
@click.option("--job-name-not-like", metavar="PATTERN", help="As SQL writes it: % stands for anything.")
@click.option("--workflow-name")
@click.option("--run", "run_id", metavar="ID", help="Of this run.")
@click.option("--created-after", metavar="TIME", help="ISO 8601.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@json_option
@click.pass_obj
def list_entries(
    connection: Connection,
    status: str | None,
    status_not_in: str | None,
    job_name_prefix: str | None,
    job_name: str | None,
    job_name_not_like: str | None,
    workflow_name: str | None,
    run_id: str | None,
    created_after: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List open work, newest runs first."""
    asked = {
        "status": status,
        "statusNotIn": status_not_in,
        "jobNamePrefix": job_name_prefix,
        "jobName": job_name,
        "jobNameNotLike": job_name_not_like,
        "workflowName": workflow_name,
        "runId": run_id,
        "createdAfter": created_after,
        "limit": limit,
    }
    found = connection.get(
        f"{PATH}?{urlencode({name: value for name, value in asked.items() if value is not None})}", api.QueueList
    )
    if as_json:
        print_json(found)
    elif found.entries:
        print_table(
            ("ID", "RUN", "WORKFLOW", "JOB", "STATUS", "CREATED", "REASON"),
            [
                (
                    one.job_id[:8],
                    one.run_id[:8],
                    one.workflow_name,
                    one.job_name,
                    one.status,
                    time_text(one.created_at),
                    one.reason,
                )
                for one in found.entries
            ],
        )
    else:
        click.echo("No queue entries found.")


@group.command("show")
@click.argument("job", metavar="JOB")
@json_option
@click.pass_obj
def show(connection: Connection, job: str, as_json: bool) -> None:
    """Show everything that the queue holds of JOB (its whole id)."""
    found = connection.get(f"{PATH}/{quote(job, safe='')}", api.QueueAnswer)
    if as_json:
        print_json(found)
        return
    for name, value in found.entry.items():
        click.echo(f"{name}: {_plain(value)}")


@group.command("explain")
@click.argument("job", metavar="JOB")
@json_option
@click.pass_obj
def explain(connection: Connection, job: str, as_json: bool) -> None:
    """Say why JOB waits: all reasons, in words. The beginning of its id is enough."""
    found = connection.get(f"{PATH}/{quote(job, safe='')}/explain", api.Explanation)
    if as_json:
        print_json(found)
        return
    click.echo(f"{found.workflow_name} / {found.job_name} ({found.job_id}), {found.status}:")
    for reason in found.reason.split("; "):
        click.echo(f"  {reason}")


_repository = click.option("--repository", metavar="NAME", help="Only of this repository.")
_label = click.option("--label", metavar="LABEL", help="Only jobs that want this label.")


@group.command("pause")
@_repository
@_label
@click.option("--reason", default="", help="Shown to everybody whose job waits for it.")
@json_option
@click.pass_obj
def pause(connection: Connection, repository: str | None, label: str | None, reason: str, as_json: bool) -> None:
    """Let nothing new start: of everything, of a repository, or of jobs that want a label. What runs goes on."""
    body = _subject(repository, label, reason)
    _paused(connection.post(f"{PATH}/pause", body, api.QueuePauseList), as_json)


@group.command("resume")
@_repository
@_label
@json_option
@click.pass_obj
def resume(connection: Connection, repository: str | None, label: str | None, as_json: bool) -> None:
    """Take a pause back. Other pauses stay."""
    body = _subject(repository, label, "")
    _paused(connection.post(f"{PATH}/resume", body, api.QueuePauseList), as_json)


@group.command("drain")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), metavar="SECONDS", help="Without: no limit.")
@click.option("--reason", default="draining", show_default=True, help="Shown to everybody whose job waits for it.")
@json_option
@click.pass_obj
def drain(connection: Connection, timeout_s: float | None, reason: str, as_json: bool) -> None:
    """Pause everything and wait until nothing runs. Exit code 1, with what still runs, when the time is over.

    The queue stays paused: `queue resume` ends that.
    """
    connection.post(f"{PATH}/pause", api.QueuePauseBody(reason=reason), api.QueuePauseList)
    until = None if timeout_s is None else time.monotonic() + timeout_s
    told = -1
    while True:
        left = connection.get(f"{PATH}?status=dispatched&limit=1000", api.QueueList).entries
        if not left or (until is not None and time.monotonic() >= until):
            break
        if len(left) != told:
            told = len(left)
            click.echo(f"{told}{' or more' if told == 1000 else ''} still with agents", err=True)
        time.sleep(LOOK_S if until is None else min(LOOK_S, max(until - time.monotonic(), 0)))
    if as_json:
        print_json({"drained": not left, "running": left})
    elif left:
        print_table(
            ("ID", "RUN", "WORKFLOW", "JOB", "REPOSITORY"),
            [(one.job_id[:8], one.run_id[:8], one.workflow_name, one.job_name, one.repository) for one in left],
        )
    else:
        click.echo("Nothing runs, and the queue is paused: `kici-admin queue resume` lets it go on.")
    if left:
        raise click.exceptions.Exit(1)


@group.command("cap")
@click.argument("repository", required=False)
@click.argument("most", metavar="[N]", type=click.IntRange(1), required=False)
@click.option("--none", "remove", is_flag=True, help="Take the repository's own cap away.")
@json_option
@click.pass_obj
def cap(connection: Connection, repository: str | None, most: int | None, remove: bool, as_json: bool) -> None:
    """Let at most N jobs of REPOSITORY run at once; without arguments, show the caps."""
    if (repository is None) != (most is None and not remove) or (most is not None and remove):
        raise click.UsageError("give a repository with a number or with --none; or nothing, to see the caps")
    if repository is None:
        found = connection.get(f"{PATH}/caps", api.RepositoryCapList)
    else:
        found = connection.post(f"{PATH}/caps", api.RepositoryCapBody(repository, most), api.RepositoryCapList)
    if as_json:
        print_json(found)
    elif found.caps:
        print_table(
            ("REPOSITORY", "CAP", "SET BY", "SINCE"),
            [(one.repository, str(one.max_running), one.created_by, time_text(one.created_at)) for one in found.caps],
        )
    else:
        click.echo("No repository has a cap of its own.", err=True)
    if found.default_cap is not None and not as_json:
        click.echo(f"Every other repository: {found.default_cap}", err=True)


def _subject(repository: str | None, label: str | None, reason: str) -> api.QueuePauseBody:
    if repository is not None and label is not None:
        raise click.UsageError("--repository and --label are two pauses: set one after the other")
    if repository is not None:
        return api.QueuePauseBody("repository", repository, reason)
    if label is not None:
        return api.QueuePauseBody("label", label, reason)
    return api.QueuePauseBody("all", "", reason)


def _paused(found: api.QueuePauseList, as_json: bool) -> None:
    if as_json:
        print_json(found)
    for pause in found.pauses if not as_json else ():
        click.echo(f"Paused: {_pause(pause)}")
    if not found.pauses and not as_json:
        click.echo("Nothing is paused.")


def _pause(pause: api.QueuePause) -> str:
    what = "everything" if pause.scope == "all" else f"{pause.scope} {pause.value}"
    why = f": {pause.reason}" if pause.reason else ""
    return f"{what}, by {pause.created_by} since {time_text(pause.created_at)}{why}"


def _count(number: int, more: bool) -> str:
    return f"{number}+" if more else str(number)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
