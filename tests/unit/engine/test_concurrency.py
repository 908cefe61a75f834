from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from hypothesis import example, given
from hypothesis import strategies as st

from kici.engine.concurrency import Admission, Entry, admit, hand_over


def one(id: str, run: str = "", *, max: int = 1, queue: bool = False, stopping: bool = False) -> Entry:
    return Entry(id, run or f"run of {id}", max, keep_latest=not queue, stopping=stopping)


def test_who_finds_a_free_slot_starts() -> None:
    assert admit([], [], one("a")) == Admission(True)
    assert admit([one("a", max=2)], [], one("b", max=2)) == Admission(True)


def test_who_finds_none_waits() -> None:
    assert admit([one("a")], [], one("b")) == Admission(False)


def test_the_newest_takes_the_place_of_the_one_that_waited() -> None:
    assert admit([one("a")], [one("b")], one("c")) == Admission(False, supersede=("b",))


def test_with_queue_all_wait_in_line_even_if_the_newest_says_keep_latest() -> None:
    assert admit([one("a")], [one("b", queue=True)], one("c", queue=True)) == Admission(False)
    assert admit([one("a")], [one("b", queue=True)], one("c")) == Admission(False)


def test_jobs_of_one_run_do_not_supersede_or_stop_each_other() -> None:
    assert admit([one("a", "r")], [one("b", "r")], one("c", "r"), cancel_in_progress=True) == Admission(False)


def test_cancel_in_progress_stops_the_oldest_and_only_as_many_as_it_takes() -> None:
    holders = [one(name, max=3) for name in "abc"]
    assert admit(holders, [], one("d", max=3), cancel_in_progress=True) == Admission(False, stop=("a",))
    assert admit(holders, [], one("d", max=2), cancel_in_progress=True) == Admission(False, stop=("a", "b"))


def test_who_stops_already_makes_room_first() -> None:
    holders = [one("a", max=2), one("b", max=2, stopping=True)]
    assert admit(holders, [], one("c", max=2), cancel_in_progress=True) == Admission(False)


def test_where_slots_are_free_nobody_is_stopped() -> None:
    assert admit([one("a", max=2)], [], one("b", max=2), cancel_in_progress=True) == Admission(True)


def test_a_holder_that_wants_to_be_alone_is_alone() -> None:
    assert not admit([one("a", max=1)], [], one("b", max=5)).starts
    assert not admit([one("a", max=5)], [], one("b", max=1)).starts


def test_nobody_overtakes_who_waits_for_more_room() -> None:
    holders, waiting = [one("a", max=3)], [one("b", max=1, queue=True)]
    assert not admit(holders, waiting, one("c", max=3, queue=True)).starts
    assert hand_over(holders, [*waiting, one("c", max=3, queue=True)]) == ()


def test_free_slots_go_to_those_who_wait_longest() -> None:
    waiting = [one(name, max=2, queue=True) for name in "bcd"]
    assert hand_over([], waiting) == ("b", "c")
    assert hand_over([one("a", max=2)], waiting) == ("b",)


# ── laws, over everything that can happen to a group ──────────────────────────────────────────────────────────────────

Arrive: TypeAlias = tuple[int, bool, bool]
"""max, queue, cancel_in_progress"""
arrivals = st.tuples(st.integers(1, 3), st.booleans(), st.booleans())
happenings = st.lists(st.one_of(arrivals, st.integers(0, 5)), max_size=60)
"""An arrival, or the end of the n-th that is there."""


@dataclass
class Group:
    """A group as its transactions keep it: an arrival or an end, with all that follows, is one step."""

    holders: list[Entry] = field(default_factory=list)
    waiters: list[Entry] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    superseded: set[str] = field(default_factory=set)
    count: int = 0

    def arrive(self, max: int, queue: bool, cancel: bool) -> Admission:
        self.count += 1
        new = one(str(self.count), max=max, queue=queue)
        decision = admit(self.holders, self.waiters, new, cancel_in_progress=cancel)
        self.superseded |= set(decision.supersede)
        self.waiters = [entry for entry in self.waiters if entry.id not in decision.supersede]
        self.holders = [
            Entry(entry.id, entry.run_id, entry.max, entry.keep_latest, entry.stopping or entry.id in decision.stop)
            for entry in self.holders
        ]
        if decision.starts:
            self.holders.append(new)
            self.started.append(self.count)
        else:
            self.waiters.append(new)
            self.hand_over()
        return decision

    def end(self, number: int) -> None:
        there = [*self.holders, *self.waiters]
        if there:
            gone = there[number % len(there)]
            self.holders = [entry for entry in self.holders if entry.id != gone.id]
            self.waiters = [entry for entry in self.waiters if entry.id != gone.id]
            self.hand_over()

    def hand_over(self) -> None:
        for id in hand_over(self.holders, self.waiters):
            (entry,) = (entry for entry in self.waiters if entry.id == id)
            self.waiters.remove(entry)
            self.holders.append(entry)
            self.started.append(int(id))


def after(steps: list[Arrive | int]) -> Group:
    group = Group()
    for step in steps:
        if isinstance(step, int):
            group.end(step)
        else:
            group.arrive(*step)
        # Never more active than anybody who is active allows.
        assert not group.holders or len(group.holders) <= min(entry.max for entry in group.holders)
        # Nobody waits while there is room for whoever waits longest.
        assert hand_over(group.holders, group.waiters) == ()
        # In place of each other waits only the newest.
        assert sum(entry.keep_latest for entry in group.waiters) <= 1 or all(
            not entry.keep_latest for entry in group.waiters[1:]
        )
    return group


@given(happenings)
def test_slots_are_never_exceeded_and_never_idle_and_who_starts_starts_in_order(steps: list[Arrive | int]) -> None:
    group = after(steps)
    assert group.started == sorted(group.started)


@given(st.lists(st.one_of(st.integers(1, 3).map(lambda max: (max, True, False)), st.integers(0, 5)), max_size=60))
def test_with_queue_nobody_is_superseded(steps: list[Arrive | int]) -> None:
    assert after(steps).superseded == set()


@given(st.lists(st.integers(1, 3).map(lambda max: (max, False, False)), max_size=20))
def test_with_keep_latest_exactly_the_newest_waits(steps: list[Arrive | int]) -> None:
    group = after(steps)
    if group.waiters:
        assert [entry.id for entry in group.waiters] == [str(group.count)]


@given(happenings, st.integers(1, 3))
@example([(1, False, False), (2, False, False), 0, (1, False, False), (2, True, False)], 2)
def test_cancelling_makes_room_for_the_newcomer_and_stops_nobody_in_vain(steps: list[Arrive | int], max: int) -> None:
    group = after(steps)
    before, waiting = group.holders, group.waiters
    decision = group.arrive(max, False, True)
    stay = [entry for entry in before if not entry.stopping and entry.id not in decision.stop]
    # Also of those who start at once because the newcomer has superseded somebody before them.
    ahead = [entry for entry in waiting if entry.id not in decision.supersede]
    if not decision.starts and not ahead:
        assert hand_over(stay, group.waiters)
    if decision.stop and not ahead:
        spared = [entry for entry in before if entry.id == decision.stop[-1]]
        assert hand_over([*spared, *stay], group.waiters) == ()
