"""Why each waiting job waits, in words. Reads what everybody reads: any coordinator gives the same answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from kici.engine import waiting
from kici.engine.lifecycle import JobStatus
from kici.orchestrator.store import needs, queue, sessions
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.queue import Place
from kici.orchestrator.store.sessions import Connected, Heard


async def explain(db: Db, job_ids: Sequence[str]) -> dict[str, str]:
    """Job → the reason. Jobs that do not wait (they run, or have ended) are missing."""
    places = await queue.places(db, job_ids)
    upstream = await needs.open_upstream(db, [place.job_id for place in places if place.status is JobStatus.PENDING])
    agents = await sessions.connected(db)
    heard = await sessions.heard(db, [place.session_id for place in places if place.session_id])
    wanted = {
        one.id: one.requirement
        for one in await queue.label_sets(
            db, {place.label_set_id for place in places if place.label_set_id is not None}
        )
    }
    reasons = {}
    for place in places:
        reason = _reason(place, upstream.get(place.job_id, []), heard.get(place.session_id or ""))
        if not reason and place.status is JobStatus.QUEUED and place.label_set_id is not None:
            reason = waiting.for_agent(wanted[place.label_set_id], [_view(agent) for agent in agents])
        if reason:
            reasons[place.job_id] = reason
    return reasons


def _reason(place: Place, upstream: Sequence[str], heard: Heard | None) -> str:
    match place.status:
        case JobStatus.PENDING:
            return waiting.for_jobs(upstream)
        case JobStatus.QUEUED if heard is not None:
            return f"sent to agent {heard.agent_id}, which has not accepted it yet"
        case JobStatus.QUEUED if place.due_in_s > 0:
            return f"attempt {place.attempt + 1} starts in {place.due_in_s:.0f} s"
        case JobStatus.RECOVERING if heard is not None:
            since = heard.last_seen_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            return f"recovering: agent {heard.agent_id} is silent since {since}"
        case JobStatus.CANCELLING if heard is not None:
            return f"cancelling: agent {heard.agent_id} has not reported the end yet"
    return ""


def _view(agent: Connected) -> waiting.AgentView:
    return waiting.AgentView(
        agent.agent_id, agent.labels, agent.slots, max(agent.slots - agent.used, 0), draining=agent.draining
    )
