"""Which files changed, for each workflow that asks: `engine.changed` decides, database and git say what is known."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from kici.engine import changed
from kici.engine.changed import Changed, Known
from kici.engine.events import Event, EventType
from kici.engine.lockfile import LockWorkflow
from kici.forges.git.remote import Remote
from kici.orchestrator.pipeline.parts import Parts
from kici.orchestrator.pipeline.subjects import Subject
from kici.orchestrator.store import last_runs
from kici.orchestrator.store.last_runs import LastRuns


async def by_workflow(
    parts: Parts, remote: Remote, subject: Subject, workflows: Iterable[LockWorkflow]
) -> dict[str, Event]:
    """Workflow's name → the event with its changed files, for those that ask about them.

    The base is one for each workflow: what one has checked says nothing about another. It costs one query for all, and
    one comparison for each base that is different, which after a success of all is one.
    """
    event = subject.event
    asking = [workflow.name for workflow in workflows if changed.wanted(workflow, event)]
    if not asking:
        return {}
    known = await _known(parts, remote, subject, asking)
    settled: dict[Known, Changed] = {}
    for facts in known.values():
        if facts not in settled:
            settled[facts] = await parts.repositories.settle(remote, changed.of_event(event, facts))
    return {name: changed.with_changed(event, settled[facts]) for name, facts in known.items()}


async def _known(parts: Parts, remote: Remote, subject: Subject, asking: list[str]) -> dict[str, Known]:
    event = subject.event
    if event.type is EventType.PULL_REQUEST:
        known = Known(base_tip=await _tip(parts, remote, event.base_branch))
        return dict.fromkeys(asking, known)
    default_tip = "" if event.branch == event.default_branch else await _tip(parts, remote, event.default_branch)
    async with parts.pool.acquire() as db:
        last = await last_runs.of_branch(db, event.repo, subject.clone_url, event.ref, asking)
    known = Known(default_tip=default_tip)
    none = LastRuns()
    return {
        name: replace(known, last_success=found.success, has_run=found.any)
        for name in asking
        for found in [last.get(name, none)]
    }


async def _tip(parts: Parts, remote: Remote, branch: str) -> str:
    resolved = await parts.repositories.resolve(remote, f"refs/heads/{branch}") if branch else None
    return resolved.sha if resolved else ""
