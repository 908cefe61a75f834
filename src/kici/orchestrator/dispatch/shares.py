"""Which free slot wishes for which lane. A rule on values: what is open, who is idle, and who has had how much.

Deficit round-robin between repositories: the next slot goes to the repository that has had the fewest, and inside it to
the lane that has had the fewest. Whoever has nothing to run saves up nothing; whoever waits for an agent that is not
there is owed a bounded number of slots. A lane whose label set only one agent offers gets that agent's slots first, up
to `HEAD_START` slots more than its share.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from kici.orchestrator.store.lanes import Lane

SLOT = 2
"""What a slot counts. A newcomer begins half a slot behind whoever is next, or a stream of newcomers could keep
somebody waiting for ever."""
HEAD_START = 8 * SLOT
"""So much a repository that only one agent can serve may have had more than the others that want this agent."""
CREDIT = 32 * SLOT
"""The most that a repository is owed for a time in which no agent could serve it."""
MOST = 256
"""Wishes of one pass: one statement claims for them all, and the next pass follows at once."""

K = TypeVar("K", bound=Hashable)


class Wish(Struct, frozen=True):
    lane: Lane
    session_id: str


class Offer(Struct, frozen=True):
    """An idle agent."""

    session_id: str
    free: int
    sets: frozenset[int]
    """The label sets that it satisfies."""


class Turns(Struct, frozen=True):
    """What each has had, counted from whoever had the least."""

    repositories: dict[str, int] = {}
    lanes: dict[Lane, int] = {}


def share(
    lanes: Collection[Lane],
    offers: Sequence[Offer],
    turns: Turns = Turns(),
    *,
    room: Mapping[str, int] | None = None,
    sole: Collection[int] = (),
) -> list[Wish]:
    """A lane for each free slot that some lane can take, at most `MOST`.

    `room`: how many more slots each capped repository may have. `sole`: label sets that one agent alone offers, of all
    that are connected, idle or not.
    """
    return _Pass(lanes, offers, turns, dict(room or {}), frozenset(sole)).run()


def charge(turns: Turns, lanes: Collection[Lane], granted: Iterable[Lane]) -> Turns:
    """The turns after these slots were really taken; `lanes` are those that were open."""
    taken = list(granted)
    open_lanes = {*lanes, *taken}
    by_repository: defaultdict[str, set[Lane]] = defaultdict(set)
    for lane in open_lanes:
        by_repository[lane.repository].add(lane)
    counts: dict[Lane, int] = {}
    per_lane = Counter(taken)
    for group in by_repository.values():
        counts |= _counted({lane: turns.lanes[lane] for lane in group if lane in turns.lanes}, group, per_lane)
    per_repository = Counter(lane.repository for lane in taken)
    return Turns(_counted(turns.repositories, by_repository.keys(), per_repository), counts)


def _counted(had: Mapping[K, int], waiting: Collection[K], taken: Counter[K]) -> dict[K, int]:
    """Newcomers begin just behind who has had the least. Nobody falls more than `CREDIT` behind, and of who has gone
    only its lead is kept."""
    if not waiting:
        return dict(had)
    least = min((had[key] for key in waiting if key in had), default=-1)
    now = {key: max(had.get(key, least + 1), least) + SLOT * taken[key] for key in waiting}
    lowest = max(min(now.values()), max(now.values()) - CREDIT)
    kept = {key: count - lowest for key, count in had.items() if key not in now and count > lowest}
    return kept | {key: max(count, lowest) - lowest for key, count in now.items()}


class _Kind:
    """Idle agents that can run the same lanes: one is as good as another."""

    def __init__(self, sets: frozenset[int], lanes: Collection[Lane]) -> None:
        self.sets = sets
        self.fits = sum(lane.label_set_id in sets for lane in lanes)
        self.free = 0
        self._agents: list[tuple[int, str]] = []

    def add(self, offer: Offer) -> None:
        self.free += offer.free
        heapq.heappush(self._agents, (-offer.free, offer.session_id))

    def take(self) -> str:
        """A slot of the agent that has the most."""
        free, session_id = heapq.heappop(self._agents)
        self.free -= 1
        if free < -1:
            heapq.heappush(self._agents, (free + 1, session_id))
        return session_id


class _Pass:
    def __init__(
        self,
        lanes: Collection[Lane],
        offers: Sequence[Offer],
        turns: Turns,
        room: dict[str, int],
        sole: frozenset[int],
    ) -> None:
        wanted = frozenset(lane.label_set_id for lane in lanes)
        kinds: dict[frozenset[int], _Kind] = {}
        for offer in offers:
            sets = offer.sets & wanted
            if sets and offer.free > 0:
                kinds.setdefault(sets, _Kind(sets, lanes)).add(offer)
        self._kinds = sorted(kinds.values(), key=lambda kind: kind.fits)
        served = frozenset(number for kind in self._kinds for number in kind.sets)
        self._sole = sole & served
        self._room = room
        self._lanes: defaultdict[str, list[Lane]] = defaultdict(list)
        for lane in sorted(lanes):
            if lane.label_set_id in served:
                self._lanes[lane.repository].append(lane)
        self._had = _counted(turns.repositories, self._lanes.keys(), Counter())
        self._lane_had: dict[Lane, int] = {}
        for group in self._lanes.values():
            self._lane_had |= _counted(
                {lane: turns.lanes[lane] for lane in group if lane in turns.lanes}, group, Counter()
            )

    def run(self) -> list[Wish]:
        """Whoever finds only agents that are kept for somebody else steps aside until that one has got a slot, or had
        its lead."""
        wishes: list[Wish] = []
        heap = [(self._had[name], name) for name in self._lanes if self._may(name)]
        heapq.heapify(heap)
        aside: list[str] = []
        while heap and len(wishes) < MOST:
            _, name = heapq.heappop(heap)
            wish, kept_for_others = self._grant(name)
            if wish is not None:
                wishes.append(wish)
                if self._may(name):
                    heapq.heappush(heap, (self._had[name], name))
            elif kept_for_others:
                aside.append(name)
            if aside and wish is not None and wish.lane.label_set_id in self._sole:
                for waiting in aside:
                    heapq.heappush(heap, (self._had[waiting], waiting))
                aside.clear()
        return wishes

    def _may(self, name: str) -> bool:
        return self._room.get(name, 1) > 0

    def _grant(self, name: str) -> tuple[Wish | None, bool]:
        """The wish, or None and whether agents are there that are kept for others."""
        kept = False
        for lane in sorted(
            self._lanes[name], key=lambda lane: (self._lane_had[lane], lane.label_set_id not in self._sole)
        ):
            for kind in self._kinds:
                if not kind.free or lane.label_set_id not in kind.sets:
                    continue
                if self._is_kept(kind, lane):
                    kept = True
                    continue
                self._had[name] += SLOT
                self._lane_had[lane] += SLOT
                if name in self._room:
                    self._room[name] -= 1
                return Wish(lane, kind.take()), False
        return None, kept

    def _is_kept(self, kind: _Kind, lane: Lane) -> bool:
        """Whether somebody else may have nobody but this agent, and has not had much more than its share."""
        mine = kind.sets & self._sole
        if not mine or lane.label_set_id in self._sole:
            return False
        limit = self._had[lane.repository] + HEAD_START
        return any(
            other.label_set_id in mine and self._had[name] < limit and self._may(name)
            for name, others in self._lanes.items()
            for other in others
        )
