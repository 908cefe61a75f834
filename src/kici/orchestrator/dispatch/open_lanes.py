"""The lanes that a coordinator knows to be open, in memory, and what keeps them true.

Only lanes that some idle agent satisfies are asked for, so what nobody can run costs nothing. The memory is a hint: a
claim decides, and a lane that gives less than was wished for is closed until something is heard. A notification that
only tells of new rows looks from the bounds on; every other one, and the poll, looks without bounds and sets them anew.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from datetime import timedelta

from msgspec import Struct
from prometheus_client import Gauge, Histogram

from kici.engine import labels
from kici.engine.labels import Requirement
from kici.orchestrator.dispatch.contract import IdleAgent
from kici.orchestrator.dispatch.shares import Offer, Turns, Wish, charge, share
from kici.orchestrator.store import label_sets, lanes, notify, queue_rules
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.lanes import FROM_THE_START, Claimed, Lane

LANES = Gauge("kici_queue_lanes", "Open lanes that this coordinator keeps in memory")
LOOKS = Histogram(
    "kici_queue_look_seconds",
    "Looking for open lanes",
    ["kind"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
)

REST = 3.0
"""After a look, so many times as long as it took nothing is looked for: with very many lanes, a quarter of the time."""
REMEMBERED_S = 900.0
"""A closed lane is forgotten after this time. Until then its dead rows are not visited again."""
ABILITIES = 20_000
"""Of so many different agents it is remembered what they can run."""
CAPPED_S = 0.5
"""How often a repository that is at its cap is counted again while an agent is free for it."""


class Settings(Struct, frozen=True):
    interval: timedelta = timedelta(seconds=5)
    """Between two looks without bounds."""
    default_cap: int | None = None
    """Of repositories that have none of their own; None = none."""


class _Known(Struct):
    bound: float
    open: bool
    seen: float


class OpenLanes:
    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._lanes: dict[Lane, _Known] = {}
        self._sets: dict[int, Requirement] = {}
        """Label sets never change; these were seen open in the last time."""
        self._set_seen: dict[int, float] = {}
        self._able: dict[frozenset[str], tuple[set[int], set[int]]] = {}
        """Labels of an agent → label sets that were compared with them, and those that they satisfy."""
        self._pauses: list[queue_rules.Pause] = []
        self._caps: dict[str, int] = {}
        self._room: dict[str, int] = {}
        self._turns = Turns()
        self._heard = True
        self._whole = True
        """The next look is one without bounds."""
        self._asked: frozenset[int] = frozenset()
        """The label sets of the last look."""
        self._rests_until = self._whole_at = clock()
        self._due_at = float("inf")

    def heard(self, keys: Set[str]) -> None:
        """What a listener passes: something was put into the queue, or anything may have changed."""
        self._heard = True
        if not keys or keys - {notify.NEW_ROWS}:
            self._whole = True

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def must_look(self, idle: Sequence[IdleAgent]) -> bool:
        """Whether the database knows something that is not known here, or may."""
        now = self._clock()
        if now >= min(self._whole_at, self._due_at):
            self._heard = self._whole = True
        if self._heard and now >= self._rests_until:
            return True
        return bool(self._room) or not self._satisfied(agent.labels for agent in idle) <= self._asked

    async def look(self, db: Db, idle: Sequence[IdleAgent]) -> None:
        wanted = self._satisfied(agent.labels for agent in idle)
        if self._heard and self._clock() >= self._rests_until:
            await self._look(db, idle)
        elif not wanted <= self._asked:
            await self._find_lanes(db, wanted, known=True)
            self._asked |= wanted
        await self._count(db)

    async def _look(self, db: Db, idle: Sequence[IdleAgent]) -> None:
        began = self._clock()
        whole, self._heard, self._whole = self._whole, False, False
        try:
            self._pauses = await queue_rules.pauses(db)
            self._caps = {cap.repository: cap.max_running for cap in await queue_rules.caps(db)}
            await self._find_sets(db, whole=whole)
            self._asked = self._satisfied(agent.labels for agent in idle)
            await self._find_lanes(db, self._asked, known=not whole)
            due = await lanes.next_due_s(db)
        except BaseException:
            self._heard = True
            self._whole |= whole
            raise
        ended = self._clock()
        self._due_at = float("inf") if due is None else ended + due
        self._rests_until = ended + REST * (ended - began)
        if whole:
            self._whole_at = ended + self._settings.interval.total_seconds()
            self._forget(ended)
        LOOKS.labels("whole" if whole else "new").observe(ended - began)

    async def _find_sets(self, db: Db, *, whole: bool) -> None:
        found = await lanes.open_label_sets(db, () if whole else self._sets.keys())
        self._set_seen |= dict.fromkeys(found, self._clock())
        unknown = set(found) - self._sets.keys()
        if unknown:
            self._sets |= await label_sets.read(db, unknown)

    async def _find_lanes(self, db: Db, sets: Collection[int], *, known: bool) -> None:
        """Without the `known` bounds, what is found gets a new one; a lane of which nothing is found keeps its own."""
        asked = {lane: one.bound for lane, one in self._lanes.items() if lane.label_set_id in sets}
        found = await lanes.open_lanes(db, sets, asked if known else None) if sets else {}
        now = self._clock()
        for lane in asked.keys() - found.keys():
            self._lanes[lane].open = False
        for lane, bound in found.items():
            self._lanes[lane] = _Known(bound, True, now)

    async def _count(self, db: Db) -> None:
        """The room that capped repositories have, if one of them has work."""
        capped = {lane.repository: cap for lane in self._open() if (cap := self._cap(lane.repository)) is not None}
        self._room = {}
        if capped:
            running = await queue_rules.running(db, capped)
            self._room = {name: max(0, cap - running.get(name, 0)) for name, cap in capped.items()}

    def _forget(self, now: float) -> None:
        old = now - REMEMBERED_S
        self._lanes = {lane: one for lane, one in self._lanes.items() if one.open or one.seen > old}
        gone = {number for number, seen in self._set_seen.items() if seen <= old}
        gone -= {lane.label_set_id for lane in self._lanes}
        if gone:
            for number in gone:
                del self._sets[number], self._set_seen[number]
            self._able.clear()
        if len(self._able) > ABILITIES:
            self._able.clear()

    # ── wishing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def wishes(self, idle: Sequence[IdleAgent], offered: Iterable[frozenset[str]]) -> list[Wish]:
        """Which idle slot takes from which lane. `offered`: the labels of every agent that takes jobs, idle or not."""
        open_lanes = self._open()
        LANES.set(len(open_lanes))
        if not open_lanes:
            return []
        sets = {lane.label_set_id for lane in open_lanes}
        offers = [Offer(agent.session_id, agent.free, frozenset(self._ability(agent.labels) & sets)) for agent in idle]
        sole: list[int] = []
        if len(sets) > 1:
            agents = Counter(number for one in offered for number in self._ability(one) & sets)
            sole = [number for number, count in agents.items() if count == 1]
        return share(open_lanes, offers, self._turns, room=self._room, sole=sole)

    def bound(self, lane: Lane) -> float:
        known = self._lanes.get(lane)
        return FROM_THE_START if known is None else known.bound

    def capped(self, wishes: Iterable[Wish]) -> set[str]:
        """The repositories among these that have a cap: their claims want `lanes.lock_caps`."""
        return {wish.lane.repository for wish in wishes} & self._room.keys()

    def note(self, wishes: Sequence[Wish], claims: Sequence[Claimed]) -> None:
        """What became of the wishes, once it is committed. A lane that gave less than was wished for is closed."""
        self._turns = charge(self._turns, self._open(), (claim.lane for claim in claims))
        for claim in claims:
            known = self._lanes.get(claim.lane)
            if known is not None:
                known.bound = max(known.bound, claim.bound)
        given = Counter(claim.lane for claim in claims)
        for lane, wished in Counter(wish.lane for wish in wishes).items():
            known = self._lanes.get(lane)
            if known is not None and given[lane] < wished:
                known.open = False

    def again_in_s(self) -> float:
        """When to look again although nothing is heard until then: at the latest when the next look without bounds is
        due, and never before the rest is over."""
        now = self._clock()
        due = now if self._heard else min(self._due_at, self._whole_at)
        wait = max(due, self._rests_until) - now
        if any(not room for room in self._room.values()):
            wait = min(wait, CAPPED_S)
        return max(wait, 0.001)

    def _open(self) -> list[Lane]:
        return [lane for lane, one in self._lanes.items() if one.open and not self._is_paused(lane)]

    def _is_paused(self, lane: Lane) -> bool:
        wanted = self._sets[lane.label_set_id].labels
        return any(pause.holds(lane.repository, wanted) for pause in self._pauses)

    def _cap(self, repository: str) -> int | None:
        return self._caps.get(repository, self._settings.default_cap)

    def _satisfied(self, agents: Iterable[frozenset[str]]) -> frozenset[int]:
        return frozenset(number for one in agents for number in self._ability(one))

    def _ability(self, own: frozenset[str]) -> set[int]:
        compared, able = self._able.setdefault(own, (set(), set()))
        for number in self._sets.keys() - compared:
            compared.add(number)
            if labels.satisfies(self._sets[number], own):
                able.add(number)
        return able
