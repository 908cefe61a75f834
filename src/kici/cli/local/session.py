"""`kici run local` from its options to its exit code."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from kici.agent.sandbox.contract import Sandbox
from kici.cli.local import caches, working_copy
from kici.cli.local import event as events
from kici.cli.local import secrets as local_secrets
from kici.cli.local.place import Places
from kici.cli.local.terminal import Hidden, Terminal
from kici.errors import KiciError
from kici.nearest import nearest

if TYPE_CHECKING:
    from kici.cli.local.compiling import Compiling
    from kici.cli.local.run import LocalRun, Settings
    from kici.engine.events import Event
    from kici.engine.lock_triggers import Trigger
    from kici.engine.lockfile import LockWorkflow


class NothingToRun(KiciError):
    """The event starts none of the workflows."""

    code = "nothing_to_run"


class NotThere(KiciError):
    """A workflow or job that was named."""

    code = "not_there"


class BadInput(KiciError):
    """The workflow's trigger does not take these inputs."""

    code = "input_invalid"


class Wanted(Struct, frozen=True):
    root: Path
    workflow: str
    asked: events.Asked
    jobs: tuple[str, ...]
    env: Mapping[str, str]
    secrets: Mapping[str, str]
    """Beside those of `.kici/.secrets`."""
    at_once: int | None
    sandbox: bool
    in_place: bool
    keep: bool
    as_json: bool
    quiet: bool
    junit: Path | None

    def __repr__(self) -> str:
        return f"Wanted(root={self.root!r}, workflow={self.workflow!r})"


def run(wanted: Wanted, compiling: Compiling) -> int:
    """The exit code. Raises `NothingToRun`, `NotThere`, and other `KiciError`s for what keeps it from starting."""
    sandbox = _sandbox(wanted.sandbox)
    known = local_secrets.read(wanted.root).overridden(wanted.secrets)
    hidden = Hidden(known.values)
    terminal = Terminal(hidden, sys.stderr.buffer if wanted.as_json else sys.stdout.buffer, quiet=wanted.quiet)
    base = Path(tempfile.mkdtemp(prefix="kici-run-", dir=os.environ.get("KICI_RUN_DIR")))
    base.chmod(0o711)  # a box's user passes through it
    try:
        runs = asyncio.run(_run(wanted, compiling, base, sandbox, known, hidden, terminal))
    finally:
        if wanted.keep:
            terminal.say(f"kept {base}")
        else:
            shutil.rmtree(base, ignore_errors=True)
    if wanted.junit:
        from kici.cli.local import junit

        junit.write(wanted.junit, runs, hidden.clean)
    from kici.cli.local import report

    if wanted.as_json:
        import msgspec

        document = report.document(runs, hidden.clean)
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    else:
        for one in runs:
            report.show(one, hidden.clean)
    return 0 if all(one.board.status() == "success" for one in runs) else 1


async def _run(
    wanted: Wanted,
    compiling: Compiling,
    base: Path,
    sandbox: Sandbox,
    known: local_secrets.LocalSecrets,
    hidden: Hidden,
    terminal: Terminal,
) -> list[LocalRun]:
    places = Places(base, sandbox, terminal, hidden, _caches(wanted))
    try:
        # The first runner starts, its working copy is made and the workflows are compiled, all at the same time.
        files = await asyncio.to_thread(working_copy.listed, wanted.root)
        copies = working_copy.Copies(wanted.root, files, alone=wanted.sandbox)
        if not wanted.in_place:
            places.fill_ahead(copies)
        found = await asyncio.to_thread(events.repository, wanted.root)
        compiled = await asyncio.to_thread(compiling.result)
        from kici.cli.local.run import Settings

        for warning in compiling.warnings():
            print(f"warning: {warning}", file=sys.stderr)
        assert compiled.lock
        settings = Settings(
            root=wanted.root,
            copies=copies,
            kici=compiled.lock.files,
            packages=compiled.packages,
            secrets=known,
            env=wanted.env,
            in_place=wanted.in_place,
            owner=sandbox.owner,
            boxed=wanted.sandbox,
            at_once=wanted.at_once or os.cpu_count() or 1,
        )
        runs = [
            _planned(workflow, event, wanted, settings, terminal)
            for workflow, event in _chosen(compiled.lock.workflows, wanted, found)
        ]
        progress = asyncio.create_task(terminal.show_progress())
        try:
            for one in runs:
                await one.run(places)
        finally:
            progress.cancel()
            await asyncio.gather(progress, return_exceptions=True)
            terminal.close()
        return runs
    finally:
        await places.close()


def _caches(wanted: Wanted) -> caches.Caches:
    """What is the developer's own is in no entry, so entries of runs that differ in that are kept apart."""
    return caches.Caches(caches.directory(), wanted.root, f"sandbox={wanted.sandbox} in_place={wanted.in_place}")


def _sandbox(boxed: bool) -> Sandbox:
    if boxed:
        from kici.agent.sandbox.choose import choose

        return choose("true").sandbox
    from kici.agent.sandbox.none import NoSandbox

    return NoSandbox()


def _chosen(
    workflows: tuple[LockWorkflow, ...], wanted: Wanted, found: events.Repository
) -> list[tuple[LockWorkflow, Event]]:
    from kici.engine import triggers

    names = sorted(workflow.name for workflow in workflows)
    _check_jobs(workflows, wanted)
    if wanted.workflow:
        named = [workflow for workflow in workflows if workflow.name == wanted.workflow]
        if not named:
            near = nearest(wanted.workflow, names)
            raise NotThere(f"there is no workflow {wanted.workflow!r}{near}; there are {', '.join(names)}")
        event = _with_changed(events.event(wanted.asked, found, named[0]), named, wanted)
        decision = triggers.match(named[0], event)
        if decision.matched or not wanted.asked.names_event:
            position = decision.trigger
            trigger = events.trigger_for(named[0], "") if position is None else named[0].triggers[position]
            return [(named[0], _with_inputs(named[0], trigger, event))]
        raise NothingToRun(f"{wanted.workflow}: {decision.summary}")
    event = _with_changed(events.event(wanted.asked, found, None), workflows, wanted)
    decisions = [(workflow, triggers.match(workflow, event)) for workflow in workflows]
    chosen = [
        (workflow, _with_inputs(workflow, workflow.triggers[decision.trigger], event))
        for workflow, decision in decisions
        if decision.trigger is not None
    ]
    if not chosen:
        reasons = "\n".join(f"  {workflow.name}: {decision.summary}" for workflow, decision in decisions)
        raise NothingToRun(f"this {event.type.value} on {event.ref or 'no ref'} starts no workflow:\n{reasons}")
    return chosen


def _with_inputs(workflow: LockWorkflow, trigger: Trigger | None, event: Event) -> Event:
    from kici.engine import inputs
    from kici.engine.errors import InputError

    try:
        return inputs.applied(trigger, event) if trigger else event
    except InputError as error:
        raise BadInput(f"{workflow.name}: {error}") from error


def _with_changed(event: Event, workflows: Sequence[LockWorkflow], wanted: Wanted) -> Event:
    """Says on standard error what was compared with, if git was asked."""
    from kici.cli.local import changed
    from kici.engine.changed import told

    asked = wanted.asked
    event = changed.with_changed(wanted.root, event, workflows, given=asked.changed, base=asked.base)
    if not asked.changed and (sentence := told(event)):
        print(sentence, file=sys.stderr)
    return event


def _check_jobs(workflows: Sequence[LockWorkflow], wanted: Wanted) -> None:
    """What a generator will make is not known yet."""
    chosen = [workflow for workflow in workflows if not wanted.workflow or workflow.name == wanted.workflow]
    known = sorted({job.name for workflow in chosen for job in workflow.jobs})
    if any(workflow.generators for workflow in chosen):
        return
    for name in wanted.jobs:
        if name not in known and chosen:
            raise NotThere(f"there is no job {name!r}{nearest(name, known)}; there are {', '.join(known)}")


def _planned(workflow: LockWorkflow, event: Event, wanted: Wanted, settings: Settings, terminal: Terminal) -> LocalRun:
    from kici.cli.local.board import Board
    from kici.cli.local.run import LocalRun
    from kici.engine import plan

    planned = plan.plan(workflow, event)
    if planned.problem:
        raise KiciError(f"{workflow.name}: {planned.problem}")
    board = Board(planned, event, wanted.jobs)
    return LocalRun(f"local-{secrets.token_hex(4)}", workflow, event, board, settings, terminal)
