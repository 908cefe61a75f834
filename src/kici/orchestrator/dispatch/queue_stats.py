"""The queue at a glance, for the API and for Prometheus: depths, ages, what nobody can run, what is paused."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta

import structlog
from asyncpg import Pool, Record
from prometheus_client import Gauge

from kici.engine import labels
from kici.engine.labels import Requirement
from kici.engine.patterns import show
from kici.orchestrator.errors import Unavailable
from kici.orchestrator.pace import Pace
from kici.orchestrator.store import label_sets, queue_rules, sessions
from kici.orchestrator.store.database import Db, transaction
from kici.orchestrator.store.views import queue_stats
from kici.orchestrator.store.views.queue_stats import Totals
from kici.wire import api

log = structlog.get_logger(__name__)

DEPTH = Gauge("kici_queue_depth", "Jobs in the queue; beyond 1,000 in a lane an estimate", ["state"])
OLDEST = Gauge("kici_queue_oldest_seconds", "Age of the oldest job in this state", ["state"])
PAUSES = Gauge("kici_queue_pauses", "Pauses that are set")
UNSERVED = Gauge("kici_queue_lanes_without_agent", "Lanes that no connected agent can serve")


async def read(db: Db, *, default_cap: int | None = None) -> api.QueueStats:
    totals = await queue_stats.read(db)
    wanted = await label_sets.read(db, {depth.lane.label_set_id for depth in totals.depths})
    agents = [agent.labels for agent in await sessions.connected(db) if not agent.draining and not agent.not_taking]
    served = {number: any(labels.satisfies(one, own) for own in agents) for number, one in wanted.items()}
    pauses = await queue_rules.pauses(db)
    caps = await queue_rules.caps(db)
    lanes = [
        api.QueueLane(
            repository=depth.lane.repository,
            labels=_shown(wanted[depth.lane.label_set_id]),
            pending=min(depth.count, queue_stats.COUNTED),
            more=depth.count > queue_stats.COUNTED,
            oldest_seconds=round(depth.oldest_s),
            has_agent=served[depth.lane.label_set_id],
            paused=any(pause.holds(depth.lane.repository, wanted[depth.lane.label_set_id].labels) for pause in pauses),
        )
        for depth in totals.depths
    ]
    return api.QueueStats(
        pending=totals.pending,
        pending_is_estimate=totals.estimated,
        delayed=totals.delayed,
        dispatched=sum(one.dispatched for one in totals.claimed),
        running=sum(one.running for one in totals.claimed),
        oldest_seconds=max((lane.oldest_seconds for lane in lanes), default=0),
        lanes=lanes,
        lanes_left_out=totals.left_out,
        repositories=_by_repository(totals, lanes, {cap.repository: cap.max_running for cap in caps}, default_cap),
        label_sets=_by_label_set(lanes),
        pauses=[shown_pause(pause) for pause in pauses],
        caps=[shown_cap(cap) for cap in caps],
        default_cap=default_cap,
    )


def shown_pause(pause: queue_rules.Pause) -> api.QueuePause:
    return api.QueuePause(pause.scope, pause.value, pause.reason, pause.created_by, pause.created_at)


def shown_cap(cap: queue_rules.Cap) -> api.RepositoryCap:
    return api.RepositoryCap(cap.repository, cap.max_running, cap.created_by, cap.created_at)


def _shown(wanted: Requirement) -> list[str]:
    return [*wanted.labels, *map(show, wanted.patterns), *(f"not {show(one)}" for one in wanted.excludes)]


def _by_repository(
    totals: Totals, lanes: list[api.QueueLane], caps: dict[str, int], default_cap: int | None
) -> list[api.QueueOfRepository]:
    pending: defaultdict[str, int] = defaultdict(int)
    oldest: defaultdict[str, int] = defaultdict(int)
    more: set[str] = set()
    for lane in lanes:
        pending[lane.repository] += lane.pending
        oldest[lane.repository] = max(oldest[lane.repository], lane.oldest_seconds)
        more |= {lane.repository} if lane.more else set()
    claimed = {one.repository: one.dispatched + one.running for one in totals.claimed}
    return [
        api.QueueOfRepository(
            name, pending[name], name in more, claimed.get(name, 0), caps.get(name, default_cap), oldest[name]
        )
        for name in sorted(pending.keys() | claimed.keys())
    ]


def _by_label_set(lanes: list[api.QueueLane]) -> list[api.QueueOfLabelSet]:
    groups: defaultdict[tuple[str, ...], list[api.QueueLane]] = defaultdict(list)
    for lane in lanes:
        groups[tuple(lane.labels)].append(lane)
    return [
        api.QueueOfLabelSet(
            list(names),
            sum(lane.pending for lane in group),
            any(lane.more for lane in group),
            max(lane.oldest_seconds for lane in group),
            group[0].has_agent,
        )
        for names, group in sorted(groups.items())
    ]


class MeasureQueue:
    """Sets the gauges. Every coordinator does and all say the same: take the greatest."""

    def __init__(self, pool: Pool[Record], interval: timedelta = timedelta(seconds=15)) -> None:
        self._pool = pool
        self._interval = interval

    async def run(self) -> None:
        async for _ in Pace(self._interval):
            try:
                await self.run_once()
            except Unavailable as error:
                log.info("the queue is not measured while the database is away", reason=str(error))

    async def run_once(self) -> None:
        async with transaction(self._pool) as db:
            stats = await read(db)
            claimed = await queue_stats.read_claimed(db)
        DEPTH.labels("pending").set(stats.pending)
        DEPTH.labels("delayed").set(stats.delayed)
        DEPTH.labels("dispatched").set(stats.dispatched)
        DEPTH.labels("running").set(stats.running)
        OLDEST.labels("pending").set(stats.oldest_seconds)
        OLDEST.labels("dispatched").set(max((one.oldest_dispatched_s or 0 for one in claimed), default=0))
        OLDEST.labels("running").set(max((one.oldest_running_s or 0 for one in claimed), default=0))
        PAUSES.set(len(stats.pauses))
        UNSERVED.set(sum(not lane.has_agent for lane in stats.lanes))
