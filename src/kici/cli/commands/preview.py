"""`kici preview`: the engine's decisions, without running anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kici.engine.events import Event
    from kici.engine.plan import Plan, PlannedJob
    from kici.engine.triggers import Decision

EVENTS = ("push", "tag", "pr", "dispatch", "generic_webhook", "manual")


@click.command()
@click.option("--event", "kind", type=click.Choice(EVENTS), default="push", show_default=True)
@click.option("--ref", default="main", show_default=True, help="Branch or tag; of a pull request its head branch.")
@click.option("--target", default="main", show_default=True, help="Of a pull request: the branch it wants to go to.")
@click.option("--action", default="opened", show_default=True, help="Of a pull request.")
@click.option("--changed", multiple=True, help="A file that changed (repeat it), in the place of what git says.")
@click.option("--base", default="", metavar="REF", help="Compare with where the checkout left this one.")
@click.option("--source", default="", help="Of a generic webhook: the source's name.")
@click.option("--name", "event_name", default="", help="Type of a dispatch or a generic webhook.")
@click.option("--workflow", "only", default="", help="Only this one; of a manual start, the one that is started.")
@click.option("--json", "as_json", is_flag=True)
def preview(
    kind: str,
    ref: str,
    target: str,
    action: str,
    changed: tuple[str, ...],
    base: str,
    source: str,
    event_name: str,
    only: str,
    as_json: bool,
) -> int:
    """Say which jobs an event would run, and why the others would not.

    The workflows are compiled in memory; what decides is what the orchestrator uses.
    """
    from kici.cli import repository
    from kici.cli.local.changed import with_changed
    from kici.compiler.compile import compile_directory
    from kici.engine import plan, triggers
    from kici.engine.changed import told
    from kici.errors import KiciError

    root = repository.root()
    lock = compile_directory(root).needed()
    event = _event(kind, ref, target, action, source, event_name, only)
    event = with_changed(root, event, lock.workflows, given=changed, base=base)
    if not changed and (sentence := told(event)):
        click.echo(sentence, err=True)
    names = [workflow.name for workflow in lock.workflows]
    if only and only not in names:
        raise KiciError(f"there is no workflow {only!r}; there are {', '.join(sorted(names))}")
    found = [
        (decision, plan.plan(workflow, event) if decision.matched else None)
        for workflow in lock.workflows
        if not only or workflow.name == only
        for decision in [triggers.match(workflow, event)]
    ]
    if as_json:
        _print_json(found)
    else:
        for decision, planned in found:
            _print(decision, planned)
    return 0


def _event(
    kind: str,
    ref: str,
    target: str,
    action: str,
    source: str,
    event_name: str,
    workflow: str,
) -> Event:
    from kici.engine.events import Event, EventType

    is_pr = kind == "pr"
    return Event(
        type=EventType.PULL_REQUEST if is_pr else EventType(kind),
        action=action if is_pr else "",
        branch="" if kind == "tag" else ref,
        tag=ref if kind == "tag" else "",
        base_branch=target if is_pr else "",
        pr_number=1 if is_pr else 0,
        sha="0" * 40,
        repo="local/preview",
        source=source,
        event_name=event_name,
        workflow=workflow,
    )


def _print(decision: Decision, planned: Plan | None) -> None:
    mark = "✓" if decision.matched else "✗"
    click.echo(f"{mark} {decision.workflow}: {decision.summary}")
    for warning in decision.warnings:
        click.echo(f"    warning: {warning}")
    if planned is None:
        for check in decision.checks:
            if not check.passed:
                click.echo(f"    {check.check}: {check.value or '(nothing)'} is not {check.pattern or '(anything)'}")
        return
    if planned.problem:
        click.echo(f"    fails: {planned.problem}")
    for warning in planned.warnings:
        click.echo(f"    warning: {warning}")
    for job in planned.jobs:
        wants = ", ".join(job.requirement.labels)
        after = ", ".join(dict.fromkeys(need.upstream for need in job.needs))
        limit = job.job.max_parallel
        details = [
            f"on {wants}" if wants else "",
            f"after {after}" if after else "",
            f"at most {limit} at once" if limit else "",
            "halts the others if it fails" if job.job.fail_fast else "",
            f"{', '.join(_dynamic(job))}: decided by init: {job.name}" if job.seed else "",
            f"skipped: {job.skip}" if job.skip else "",
            job.problem,
        ]
        click.echo(f"    {job.name}  " + "  ".join(detail for detail in details if detail))


def _dynamic(job: PlannedJob) -> tuple[str, ...]:
    """What only running code can tell of it."""
    if job.seed is None:
        return ()
    return job.seed.job.dynamic if job.seed.job else ("jobs",)


def _print_json(found: list[tuple[Decision, Plan | None]]) -> None:
    import msgspec

    answer = [
        {
            "decision": decision,
            "jobs": [
                {
                    "name": job.name,
                    "matrix": job.matrix,
                    "runsOn": job.requirement.labels,
                    "needs": [need.upstream for need in job.needs],
                    "maxParallel": job.job.max_parallel,
                    "failFast": job.job.fail_fast,
                    "dynamic": _dynamic(job),
                    "skip": job.skip,
                    "problem": job.problem,
                }
                for job in (planned.jobs if planned else ())
            ],
            "warnings": planned.warnings if planned else (),
        }
        for decision, planned in found
    ]
    click.echo(msgspec.json.format(msgspec.json.encode(answer)).decode())
