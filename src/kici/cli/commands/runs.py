"""`kici runs`: look at runs, read their logs, start, rerun and cancel them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal

import click

from kici.cli import client as clients
from kici.cli import names
from kici.cli.client import Client, ClientError, segment
from kici.cli.run_tree import duration, print_tree, rich_tree, short_ref, summaries
from kici.cli.tables import echo, print_table, speaks_unicode, time_of, wants_colour
from kici.engine.lifecycle import TERMINAL_RUN
from kici.wire import api

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group()
def runs() -> None:
    """Look at runs, read their logs, start, rerun and cancel them.

    A run may be named by the beginning of its id.
    """


@runs.command("list")
@click.option("--status", help="pending, running, success, failed, cancelled; several with commas.")
@click.option("--workflow", help="Of this workflow.")
@click.option("--repo", help="Of this repository.")
@click.option("--since", help="Made after this ISO 8601 time.")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True)
@click.option("--offset", type=click.IntRange(0), default=0, show_default=True)
@json_option
def list_runs(
    status: str | None,
    workflow: str | None,
    repo: str | None,
    since: str | None,
    limit: int,
    offset: int,
    as_json: bool,
) -> None:
    """List runs, newest first."""
    query = {"status": status, "workflowName": workflow, "repo": repo, "since": since, "limit": limit, "offset": offset}
    with clients.configured() as client:
        found = client.get("/runs", api.RunList, query)
    if as_json:
        _print_json(found)
    elif not found.runs:
        click.echo("No runs found.")
    else:
        header = ("run", "workflow", "status", "repo", "ref", "sha", "started", "duration")
        print_table(header, [_row(run) for run in found.runs])
        click.echo(f"Showing {len(found.runs)} of {found.total} (offset {found.offset}, limit {found.limit})")


@runs.command()
@click.argument("run", shell_complete=names.runs)
@json_option
def show(run: str, as_json: bool) -> None:
    """Show a run with its jobs and steps: how long they took, why they wait, what went wrong, what they tell."""
    with clients.configured() as client:
        shown, jobs = _whole(client, _run_id(client, run))
    if as_json:
        _print_json({"run": shown, "jobs": jobs})
        return
    for name, value in _facts(shown):
        echo(f"{name + ':':<14}{value}")
    echo("")
    _print_run(shown, jobs)
    for heading, markdown in summaries(jobs):
        echo("")
        echo(_heading(heading))
        echo(markdown)


@runs.command()
@click.argument("run", shell_complete=names.runs)
@click.option("--job", help="Only of this job, named with or without its matrix values.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends.")
@click.option("--timestamps", is_flag=True, help="Each line with its time.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; with --follow one for each event.")
def logs(run: str, job: str | None, follow: bool, timestamps: bool, as_json: bool) -> None:
    """Print the logs of a run, job after job; with --follow as the lines come."""
    from kici.cli.run_logs import LogPrinter, stored

    printer = LogPrinter(echo, timestamps=timestamps, style=_heading)
    with clients.configured() as client:
        run_id = _run_id(client, run)
        if follow:
            _follow(client, run_id, job, printer if not as_json else None)
            return
        shown, jobs = _whole(client, run_id)
        chosen = [one for one in jobs if job is None or job in (one.job_name, one.base_job_name)]
        if not chosen and job is not None:
            raise _no_job(job, (one.job_name for one in jobs))
        if as_json:
            _print_json({"runId": run_id, "logs": list(stored(client, run_id, chosen))})
            return
        for lines in stored(client, run_id, chosen):
            printer.print(lines)
    if shown.status not in TERMINAL_RUN:
        click.echo("the run goes on: --follow prints what comes", err=True)


@runs.command()
@click.argument("run", shell_complete=names.runs)
@click.argument("job", required=False)
@json_option
def explain(run: str, job: str | None, as_json: bool) -> None:
    """Say why the jobs of a run wait, or JOB (a name, with or without matrix values): all reasons, in words."""
    from kici.engine.waiting import not_waiting

    with clients.configured() as client:
        shown, jobs = _whole(client, _run_id(client, run))
    chosen = [one for one in jobs if job is None or job in (one.job_name, one.base_job_name)]
    if not chosen and job is not None:
        raise _no_job(job, (one.job_name for one in jobs))
    told = [
        api.Explanation(
            one.job_id,
            shown.run_id,
            shown.workflow_name,
            one.job_name,
            one.status,
            one.waiting_reason is not None,
            one.waiting_reason or not_waiting(one.status, one.agent_id, one.attempt, one.started_at, one.error_message),
        )
        for one in chosen
    ]
    if as_json:
        _print_json({"jobs": told})
        return
    for one in told if job is not None else [one for one in told if one.waits]:
        echo(f"{one.job_name}  {one.status}")
        for reason in one.reason.split("; "):
            echo(f"  {reason}")
    if job is None and not any(one.waits for one in told):
        click.echo("no job of this run waits")


@runs.command()
@click.argument("run", shell_complete=names.runs)
@click.option("--force", is_flag=True, help="Kill at once, without the grace period.")
@json_option
def cancel(run: str, force: bool, as_json: bool) -> None:
    """Cancel a run."""
    with clients.configured() as client:
        run_id = _run_id(client, run)
        answer = client.post(f"/runs/{segment(run_id)}/cancel", api.CancelBody(force), api.CancelAnswer)
    if as_json:
        _print_json(answer)
    else:
        jobs = "1 job" if answer.cancelled_jobs == 1 else f"{answer.cancelled_jobs} jobs"
        click.echo(f"{answer.status}: {jobs} of run {run_id}")


@runs.command()
@click.argument("workflow", shell_complete=names.workflows)
@click.option("--ref", default="", help="Branch, tag or full commit id; the default branch if left out.")
@click.option("--repo", default="", help="Repository; may be left out where the orchestrator knows only one.")
@click.option("--input", "inputs", multiple=True, metavar="KEY=VALUE", help="For the workflow; may be repeated.")
@json_option
def start(workflow: str, ref: str, repo: str, inputs: tuple[str, ...], as_json: bool) -> None:
    """Start a workflow that has the trigger manual(), and wait until its run exists."""
    from kici.cli import run_start

    wanted = api.RunStart(workflow, ref, repo, _inputs(inputs))
    with clients.configured() as client:
        run_id = run_start.start(client, wanted)
    if as_json:
        _print_json({"runId": run_id})
    else:
        click.echo(f"started run {run_id}")
        click.echo(f"watch it: kici runs logs -f {run_id}", err=True)


@runs.command()
@click.argument("run", shell_complete=names.runs)
@click.option("--failed", is_flag=True, help="Only the jobs that did not succeed, and all that need them.")
@click.option("--job", default="", help="Only this job (all its combinations, or one), and all that need it.")
@click.option(
    "--commit",
    type=click.Choice(("same", "current")),
    default="same",
    show_default=True,
    help="The run's own commit, or the head of its branch now.",
)
@json_option
def rerun(run: str, failed: bool, job: str, commit: Literal["same", "current"], as_json: bool) -> None:
    """Run an ended run again, as a new run, and wait until that exists.

    Jobs that are not run again are reused with their outputs and artifacts.
    """
    from kici.cli import run_start

    if failed and job:
        raise click.UsageError("--failed and --job exclude each other")
    if commit == "current" and (failed or job):
        raise click.UsageError("--commit current runs everything again: leave --failed and --job out")
    wanted = api.RerunBody(mode="failed" if failed else "job" if job else "all", job=job, commit=commit)
    with clients.configured() as client:
        parent = _run_id(client, run)
        run_id = run_start.start(client, wanted, path=f"/runs/{segment(parent)}/rerun")
    if as_json:
        _print_json({"runId": run_id, "parentRunId": parent})
    else:
        click.echo(f"started run {run_id}, a rerun of {parent}")
        click.echo(f"watch it: kici runs logs -f {run_id}", err=True)


def _run_id(client: Client, text: str) -> str:
    """The whole id of a run that is named by its beginning."""
    if len(text) >= 36:
        return text
    found = client.get("/runs", api.RunList, {"idPrefix": text, "limit": 2})
    if not found.runs:
        raise ClientError(f"there is no run whose id begins with {text!r}: `kici runs list` shows them")
    if len(found.runs) > 1:
        ids = " and ".join(run.run_id for run in found.runs)
        raise ClientError(f"{text!r} is the beginning of {found.total} run ids, among them {ids}: give more of it")
    return found.runs[0].run_id


def _whole(client: Client, run_id: str) -> tuple[api.Run, list[api.Job]]:
    run = client.get(f"/runs/{segment(run_id)}", api.RunAnswer).run
    return run, client.get(f"/runs/{segment(run_id)}/jobs", api.JobList, {"includeSteps": "true"}).jobs


def _follow(client: Client, run_id: str, job: str | None, printer: Any) -> None:
    """`printer` None: JSON, an event a line."""
    import msgspec

    from kici.cli.run_events import follow

    jobs: dict[str, api.Job] = {}
    for happening in follow(client, run_id, logs=True):
        if isinstance(happening, api.Job):
            jobs[happening.job_id] = happening
        elif isinstance(happening, api.LogLines):
            known = jobs.get(happening.job_id)
            if job is None or job == happening.job_name or (known and job == known.base_job_name):
                if printer:
                    printer.print(happening)
                else:
                    click.echo(msgspec.json.encode(happening).decode())
        elif isinstance(happening, api.StreamEnd):
            if job is not None and not any(job in (one.job_name, one.base_job_name) for one in jobs.values()):
                raise _no_job(job, (one.job_name for one in jobs.values()))
            if not happening.logs_complete:
                click.echo("lines are missing: an agent has not delivered them", err=True)
            click.echo(f"run {run_id} ended: {happening.status}", err=True)


def _no_job(job: str, names: Iterator[str]) -> ClientError:
    return ClientError(f"the run has no job {job!r}; it has: {', '.join(names)}")


def _inputs(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise click.UsageError(f"--input {pair!r}: write KEY=VALUE")
        found[name] = value
    return found


def _facts(run: api.Run) -> Iterator[tuple[str, str]]:
    yield "Run", run.run_id
    yield "Repository", f"{run.repo_identifier} ({run.provider})"
    yield "Commit", f"{run.sha} {short_ref(run.ref)}"
    more = {
        "Message": (run.commit_message or "").split("\n", 1)[0],
        "Event": run.trigger_event,
        "Changed": run.changed,
        "Started": time_of(run.started_at),
        "Triggered by": run.triggered_by,
        "Cancelled by": run.cancelled_by,
        "Parent": f"{run.parent_run_id} (rerun: {run.rerun_mode or 'all'})" if run.parent_run_id else None,
        "Environment": run.environment,
        "Trust tier": run.trust_tier,
        "Failure": run.failure_reason,
    }
    for name, value in more.items():
        if value and value != "-":
            yield name, value


def _row(run: api.Run) -> tuple[str, ...]:
    return (
        run.run_id,
        run.workflow_name,
        run.status,
        run.repo_identifier,
        short_ref(run.ref),
        run.sha[:7],
        time_of(run.started_at),
        duration(run.duration_ms),
    )


def _print_run(run: api.Run, jobs: list[api.Job]) -> None:
    now = datetime.now(UTC)
    if sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False).print(rich_tree(run, jobs, now), soft_wrap=True)
    else:
        print_tree(run, jobs, now, echo, ascii_only=not speaks_unicode())


def _print_json(value: Any) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _heading(text: str) -> str:
    return click.style(text, fg="cyan") if wants_colour() else text
