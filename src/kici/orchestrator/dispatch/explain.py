"""Why each waiting job waits, in words. Reads what everybody reads: any coordinator gives the same answer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct

from kici.engine import waiting
from kici.engine.labels import Requirement
from kici.engine.lifecycle import JobStatus
from kici.orchestrator.store import known_labels, label_sets, needs, queue_rules, sessions, waits
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.known_labels import KnownLabels
from kici.orchestrator.store.lanes import Lane
from kici.orchestrator.store.queue_rules import Pause
from kici.orchestrator.store.sessions import Heard
from kici.orchestrator.store.waits import GroupHolder, InLine, LaneHead, Standing


class _Facts(Struct, kw_only=True):
    """What the reasons of these jobs are made of."""

    upstream: Mapping[str, Sequence[str]]
    in_line: Sequence[InLine]
    holders: Sequence[GroupHolder]
    in_flight: Mapping[tuple[str, str], int]
    heard: Mapping[str, Heard]
    wanted: Mapping[int, Requirement]
    agents: Sequence[waiting.AgentView]
    known: Collection[str]
    pauses: Sequence[Pause]
    caps: Mapping[str, int]
    running: Mapping[str, int]
    heads: Mapping[Lane, LaneHead]


async def explain(
    db: Db, job_ids: Sequence[str], *, default_cap: int | None = None, known: KnownLabels | None = None
) -> dict[str, str]:
    """Job → all reasons for which it waits. Jobs that do not wait (they run, or have ended) are missing."""
    found = await waits.standing(db, job_ids)
    if not found:
        return {}
    facts = await _read(db, found, default_cap, known or KnownLabels())
    told = {one.job_id: waiting.all_of(_reasons(one, facts)) for one in found}
    return {job_id: text for job_id, text in told.items() if text}


async def _read(db: Db, found: Sequence[Standing], default_cap: int | None, known: KnownLabels) -> _Facts:
    pending = [one for one in found if one.status is JobStatus.PENDING]
    free = {one.lane for one in found if one.status is JobStatus.QUEUED and one.lane is not None}
    wanted = await label_sets.read(db, {lane.label_set_id for lane in free}) if free else {}
    repositories = {lane.repository for lane in free}
    own_caps = {cap.repository: cap.max_running for cap in await queue_rules.caps(db)} if free else {}
    caps = {name: cap for name in repositories if (cap := own_caps.get(name, default_cap)) is not None}
    in_line = await waits.in_line(db, {one.run_id for one in pending}) if pending else []
    gated = {one.run_id for one in pending if one.wave_gated}
    return _Facts(
        upstream=await needs.open_upstream(db, [one.job_id for one in pending]) if pending else {},
        in_line=in_line,
        holders=await waits.holders(db, {(one.scope, one.group) for one in in_line}) if in_line else [],
        in_flight=await waits.in_flight(db, gated) if gated else {},
        heard=await sessions.heard(db, [one.session_id for one in found if one.session_id]),
        wanted=wanted,
        agents=[_view(agent) for agent in await sessions.connected(db)] if free else [],
        known=await known.among(db, {label for one in wanted.values() for label in one.labels}) if free else (),
        pauses=await queue_rules.pauses(db) if free else [],
        caps=caps,
        running=await queue_rules.running(db, caps) if caps else {},
        heads=await waits.heads(db, free) if free else {},
    )


def _reasons(one: Standing, facts: _Facts) -> Iterator[str]:
    heard = facts.heard.get(one.session_id or "")
    match one.status:
        case JobStatus.PENDING:
            yield from _before_the_queue(one, facts)
        case JobStatus.QUEUED if heard is not None:
            yield waiting.not_accepted(heard.agent_id, one.claimed_at, one.ack_deadline)
        case JobStatus.QUEUED if one.lane is not None:
            yield from _in_the_queue(one, one.lane, facts)
        case JobStatus.RECOVERING if heard is not None:
            yield waiting.recovering(heard.agent_id, heard.last_seen_at, one.recovery_deadline, one.report_deadline)
        case JobStatus.CANCELLING if heard is not None:
            yield waiting.cancelling(
                heard.agent_id, one.cancel_requested_at, one.cancel_deadline, force=one.cancel_force
            )


def _before_the_queue(one: Standing, facts: _Facts) -> Iterator[str]:
    upstream = facts.upstream.get(one.job_id)
    if upstream:
        yield waiting.for_jobs(upstream)
    for line in facts.in_line:
        if line.run_id == one.run_id and line.job_id in (None, one.job_id):
            yield waiting.for_group(
                line.group,
                [
                    waiting.Holder(who.run_id, who.job_name, who.activated_at, who.stopping)
                    for who in facts.holders
                    if (who.scope, who.group) == (line.scope, line.group)
                ],
                line.place,
                line.waiting,
                whole_run=line.job_id is None,
            )
    if one.wave_gated and one.wave_max_parallel is not None:
        running = facts.in_flight.get((one.run_id, one.base_job_name), 0)
        yield waiting.for_place_in_fan_out(one.base_job_name, running, one.wave_max_parallel)


def _in_the_queue(one: Standing, lane: Lane, facts: _Facts) -> Iterator[str]:
    wanted = facts.wanted[lane.label_set_id]
    reasons = [*_rules(wanted, lane, facts)]
    if one.not_before is not None and one.not_before > one.now:
        in_s = (one.not_before - one.now).total_seconds()
        reasons.append(waiting.for_next_attempt(one.attempt + 1, in_s, one.last_loss or ""))
    reasons.append(waiting.for_agent(wanted, facts.agents))
    never = waiting.never_offered(wanted, facts.known)
    if never:
        reasons.append(waiting.unservable(never, facts.known, days=known_labels.DAYS))
    if one.last_provisioning_error:
        reasons.append(waiting.for_machine(one.last_provisioning_error))
    if not any(reasons):
        reasons.append(waiting.about_to_be_sent(wanted, facts.agents))
    yield from reasons
    head = facts.heads.get(lane)
    if head is not None and one.sort_key is not None:
        yield waiting.place_in_lane(bisect_left(head.keys, one.sort_key), len(head.keys), head.oldest_s)


def _rules(wanted: Requirement, lane: Lane, facts: _Facts) -> Iterator[str]:
    """What an operator has set."""
    for pause in facts.pauses:
        if pause.holds(lane.repository, wanted.labels):
            yield waiting.paused(
                pause.scope, pause.value, by=pause.created_by, since=pause.created_at, why=pause.reason
            )
    cap, running = facts.caps.get(lane.repository), facts.running.get(lane.repository, 0)
    if cap is not None and running >= cap:
        yield waiting.at_cap(lane.repository, running, cap)


def _view(agent: sessions.Connected) -> waiting.AgentView:
    return waiting.AgentView(
        agent.agent_id,
        agent.labels,
        agent.slots,
        max(agent.slots - agent.used, 0),
        draining=agent.draining,
        not_taking=agent.not_taking,
    )
