"""Deliveries of generic sources: they have no repository, so they start what default branches have registered."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from kici.engine.events import Event
from kici.engine.lockfile import GenericWebhookTrigger
from kici.orchestrator.pipeline import results
from kici.orchestrator.pipeline.new_runs import LockPlace
from kici.orchestrator.pipeline.parts import Parts
from kici.orchestrator.pipeline.repository_events import plan_matching
from kici.orchestrator.pipeline.results import Planned, Result
from kici.orchestrator.pipeline.subjects import Subject, source_of
from kici.orchestrator.store import registrations
from kici.orchestrator.store.event_claims import Claim, Ended
from kici.orchestrator.store.registrations import Registration

_TRIGGER = str(GenericWebhookTrigger.__struct_config__.tag)


async def handle(parts: Parts, claim: Claim, event: Event) -> Result:
    """A repository that two sources tell of starts each workflow once; one whose source was removed starts none."""
    async with parts.pool.acquire() as db:
        registered = await registrations.with_trigger(db, _TRIGGER)
    runs: list[Planned] = []
    remarks: list[str] = []
    seen: set[tuple[str, str]] = set()
    for one in _listening_to(registered, event.source):
        key = (one.repository.repo, one.workflow.name)
        if key in seen or await source_of(parts.sources, one.repository.routing_key) is None:
            continue
        seen.add(key)
        place = LockPlace(one.commit_sha, one.repository.context.lock_sha256)
        planned = plan_matching(parts, claim, _subject(one, event), (one.workflow,), place)
        runs += planned.runs
        remarks += [f"{one.repository.repo}: {remark}" for remark in planned.ended.warnings]
    if not seen:
        remarks = [f"no workflow on a default branch has generic_webhook({event.source!r})"]
    return results.with_runs(Result(Ended(status="processed", warnings=remarks)), runs)


def _listening_to(registered: list[Registration], source: str) -> Iterator[Registration]:
    for one in registered:
        if any(isinstance(t, GenericWebhookTrigger) and t.source == source for t in one.workflow.triggers):
            yield one


def _subject(registration: Registration, event: Event) -> Subject:
    """The commit is the one that was registered: definition and code belong together."""
    context = registration.repository.context
    return Subject(
        event=replace(
            event,
            repo=registration.repository.repo,
            branch=context.default_branch,
            default_branch=context.default_branch,
            sha=registration.commit_sha,
        ),
        clone_url=context.clone_url,
        provider=context.provider,
        routing_key=registration.repository.routing_key,
    )
