"""From a claimed event to what is to be written. Nothing is written here, so it may be done twice."""

from __future__ import annotations

import asyncio

from kici.engine.events import EventType
from kici.forges import registry
from kici.forges.contract import ForgeError, Ignored, Normalized, Source
from kici.orchestrator.pipeline import emitted, manual, registered, repository_events, rerun, results
from kici.orchestrator.pipeline.parts import Parts
from kici.orchestrator.pipeline.results import Result
from kici.orchestrator.pipeline.subjects import Subject, clone_url, source_of
from kici.orchestrator.store import completions
from kici.orchestrator.store.event_claims import Claim

_LARGE_BYTES = 262_144
"""A larger body is decoded in a thread, so that heartbeats do not wait for it."""


async def process(parts: Parts, claim: Claim) -> Result:
    """Raises a `GitError` for an outage of the forge: the event is then tried again."""
    if claim.body is None:
        return results.ends("failed", "the body of the delivery is no longer in the database")
    if claim.provider == manual.PROVIDER:
        return await manual.handle(parts, claim)
    if claim.provider == rerun.PROVIDER:
        return await rerun.handle(parts, claim)
    if claim.provider == emitted.PROVIDER:
        return await registered.emitted(parts, claim)
    if claim.provider == completions.PROVIDER:
        return await registered.completed(parts, claim)
    source = await source_of(parts.sources, claim.routing_key)
    if source is None:
        return results.ends("failed", f"the source {claim.routing_key} was removed before its delivery was processed")
    try:
        normalized = await _normalize(claim, claim.body, source.view)
    except ForgeError as error:
        return results.ends("failed", f"the delivery cannot be read: {error}")
    if isinstance(normalized, Ignored):
        return results.ends("ignored", normalized.reason)
    event = normalized.event
    if event.type in (EventType.GENERIC_WEBHOOK, EventType.WEBHOOK):
        return await registered.handle(parts, claim, event)
    subject = Subject(
        event=event,
        clone_url=clone_url(normalized.clone_url, event.repo),
        provider=claim.provider,
        routing_key=claim.routing_key,
    )
    result = await repository_events.handle(parts, claim, subject)
    return registered.together(result, await registered.webhooks(parts, claim, event))


async def _normalize(claim: Claim, body: bytes, source: Source) -> Normalized | Ignored:
    forge = registry.forge_of(claim.provider)
    if len(body) <= _LARGE_BYTES:
        return forge.normalize(claim.event_name, claim.headers, body, source)
    return await asyncio.to_thread(forge.normalize, claim.event_name, claim.headers, body, source)
