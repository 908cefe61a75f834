"""`kici preview`: the engine's decisions, without running anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kici.cli import names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kici.cli.local.event import Asked
    from kici.engine.events import Event
    from kici.engine.lockfile import LockWorkflow
    from kici.engine.plan import Plan, PlannedJob
    from kici.engine.triggers import Decision

_CALLED = {"schedule": "a schedule", "manual": "a start by hand"}


@click.command()
@click.option(
    "--event", "kind", metavar="EVENT", default="push", help="As `kici fixture` takes it, or a file; else push."
)
@click.option("--ref", default="", help="Branch (main if left out) or tag; of a pull request its head branch.")
@click.option("--target", default="", help="Of a pull request: the branch it wants to go to; main if left out.")
@click.option("--action", default="", help="Of a pull request: opened if left out.")
@click.option("--input", "inputs", multiple=True, metavar="NAME=VALUE", help="An input (repeat it).")
@click.option("--changed", multiple=True, help="A file that changed (repeat it), in the place of what git says.")
@click.option("--base", default="", metavar="REF", help="Compare with where the checkout left this one.")
@click.option("--source", default="", help="Of a generic webhook: the source's name.")
@click.option(
    "--name", "event_name", default="", help="Type of a dispatch or a generic webhook; the workflow that ended."
)
@click.option(
    "--workflow",
    "only",
    default="",
    shell_complete=names.workflows,
    help="Only this one; of a manual start, the one that is started.",
)
@click.option("--json", "as_json", is_flag=True)
def preview(
    kind: str,
    ref: str,
    target: str,
    action: str,
    inputs: tuple[str, ...],
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
    from kici.cli.commands.run_local import given_inputs
    from kici.cli.local.changed import with_changed
    from kici.cli.local.event import Asked
    from kici.cli.local.secrets import everywhere
    from kici.compiler.compile import compile_directory
    from kici.engine import triggers
    from kici.engine.changed import told
    from kici.errors import KiciError

    root = repository.root()
    lock = compile_directory(root, secrets=lambda: everywhere(root)).needed()
    names = [workflow.name for workflow in lock.workflows]
    if only and only not in names:
        raise KiciError(f"there is no workflow {only!r}; there are {', '.join(sorted(names))}")
    named = next((workflow for workflow in lock.workflows if workflow.name == only), None)
    asked = Asked(kind, ref, target, inputs=given_inputs(inputs))
    event = _event(asked, action, source, event_name, named)
    if hint := _hint(kind, event, lock.workflows):
        click.echo(hint, err=True)
    event = with_changed(root, event, lock.workflows, given=changed, base=base)
    if not changed and (sentence := told(event)):
        click.echo(sentence, err=True)
    found = [
        (decision, None if decision.trigger is None else _planned(workflow, decision.trigger, event))
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


def _event(asked: Asked, action: str, source: str, event_name: str, workflow: LockWorkflow | None) -> Event:
    """Of nobody's commit. What is said by an option goes before what the word or the trigger says."""
    from msgspec.structs import replace

    from kici.cli.local.event import Repository, event
    from kici.engine.events import EventType
    from kici.engine.trigger_checks import COMPLETIONS

    found = event(asked, Repository(branch="main", name="local/preview"), workflow)
    if asked.kind == "pr":
        action = action or "opened"
    if found.type is EventType.PULL_REQUEST and action:
        found = replace(found, action=action)
    if event_name and found.type in COMPLETIONS:  # of a workflow of this repository, as far as one can see here
        return replace(found, workflow=event_name, source_repo=found.repo)
    return replace(found, source=source or found.source, event_name=event_name or found.event_name)


def _hint(kind: str, event: Event, workflows: Sequence[LockWorkflow]) -> str:
    """What is missing in the question, where an event is about one workflow."""
    from kici.cli.local import event_words
    from kici.engine.events import EventType

    if event.type not in (EventType.SCHEDULE, EventType.MANUAL) or event.workflow:
        return ""
    kind = kind.partition(":")[0]
    able = [one.name for one in workflows if any(event_words.kind_of(trigger) == kind for trigger in one.triggers)]
    if not able:
        return f"no workflow has {kind}() among its triggers"
    others = f" (or {', '.join(able[1:])})" if able[1:] else ""
    return f"{_CALLED[kind]} is for one workflow: add --workflow {able[0]}{others}"


def _planned(workflow: LockWorkflow, trigger: int, event: Event) -> Plan:
    from kici.engine import inputs, plan
    from kici.engine.errors import InputError

    try:
        return plan.plan(workflow, inputs.applied(workflow.triggers[trigger], event))
    except InputError as error:
        return plan.Plan(jobs=(), problem=str(error))


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
