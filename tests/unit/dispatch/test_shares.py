from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kici.orchestrator.dispatch.shares import CREDIT, HEAD_START, SLOT, Offer, Turns, Wish, charge, share
from kici.orchestrator.store.lanes import Lane

LINUX, GPU, ARM = 1, 2, 3
PLAIN = frozenset({LINUX})
BOTH = frozenset({LINUX, GPU})


def idle(name: str, sets: frozenset[int] = PLAIN, free: int = 1) -> Offer:
    return Offer(name, free, sets)


def given_to(wishes: list[Wish]) -> Counter[str]:
    return Counter(wish.lane.repository for wish in wishes)


class Fleet:
    """Passes of a coordinator over lanes that hold so many jobs, by a clock that only counts passes."""

    def __init__(self, jobs: dict[Lane, int], agents: dict[str, tuple[frozenset[int], int]]) -> None:
        self.jobs = jobs
        self.agents = agents
        self.running: list[tuple[Lane, str]] = []
        self.turns = Turns()
        self.started: Counter[str] = Counter()
        self.caps: dict[str, int] = {}

    def pass_once(self) -> list[Lane]:
        used = Counter(agent for _, agent in self.running)
        offers = [Offer(name, slots - used[name], sets) for name, (sets, slots) in self.agents.items()]
        lanes = [lane for lane, left in self.jobs.items() if left]
        busy = Counter(lane.repository for lane, _ in self.running)
        room = {name: max(0, cap - busy[name]) for name, cap in self.caps.items()}
        able = Counter(number for sets, _ in self.agents.values() for number in sets)
        sole = [number for number, count in able.items() if count == 1]
        granted = []
        for wish in share(lanes, offers, self.turns, room=room, sole=sole):
            if self.jobs[wish.lane]:
                self.jobs[wish.lane] -= 1
                self.running.append((wish.lane, wish.session_id))
                granted.append(wish.lane)
                self.started[wish.lane.repository] += 1
        self.turns = charge(self.turns, lanes, granted)
        return granted

    def settle(self) -> None:
        """Passes until nothing is granted any more, as a coordinator makes them."""
        while self.pass_once():
            pass

    def finish(self, count: int, choose: random.Random) -> None:
        for _ in range(min(count, len(self.running))):
            self.running.pop(choose.randrange(len(self.running)))


def test_slots_are_shared_between_repositories_not_lanes() -> None:
    lanes = [Lane(LINUX, "many"), Lane(GPU, "many"), Lane(ARM, "many"), Lane(LINUX, "one")]
    wishes = share(lanes, [idle("a", frozenset({LINUX, GPU, ARM}), 6)])
    assert given_to(wishes) == {"many": 3, "one": 3}
    assert Counter(wish.lane for wish in wishes if wish.lane.repository == "many").most_common()[0][1] == 1


def test_who_was_served_is_last_the_next_time() -> None:
    lanes = [Lane(LINUX, "x"), Lane(LINUX, "y")]
    turns, order = Turns(), []
    for _ in range(4):
        (wish,) = share(lanes, [idle("a")], turns)
        turns = charge(turns, lanes, [wish.lane])
        order.append(wish.lane.repository)
    assert order == ["x", "y", "x", "y"]


def test_a_wish_that_gave_nothing_costs_nothing() -> None:
    lanes = [Lane(LINUX, "x"), Lane(LINUX, "y")]
    assert charge(Turns(), lanes, []).repositories == {"x": 0, "y": 0}


def test_an_agent_that_alone_can_run_some_job_is_kept_for_it() -> None:
    lanes = [Lane(LINUX, "a"), Lane(GPU, "b")]
    wishes = share(lanes, [idle("special", BOTH), idle("plain")], sole=[GPU])
    assert {wish.lane.label_set_id: wish.session_id for wish in wishes} == {LINUX: "plain", GPU: "special"}


def test_it_takes_that_job_first_although_another_repository_is_next() -> None:
    lanes = [Lane(LINUX, "a"), Lane(GPU, "b")]
    behind = Turns({"a": 0, "b": 2 * SLOT}, {})
    assert share(lanes, [idle("special", BOTH)], behind, sole=[GPU])[0].lane.repository == "b"
    assert share(lanes, [idle("special", BOTH)], behind)[0].lane.repository == "a"


def test_but_not_for_ever() -> None:
    lanes = [Lane(LINUX, "a"), Lane(GPU, "b")]
    far_behind = Turns({"a": 0, "b": HEAD_START}, {})
    assert share(lanes, [idle("special", BOTH)], far_behind, sole=[GPU])[0].lane.repository == "a"


def test_a_lane_that_nobody_can_serve_costs_nobody_a_slot() -> None:
    wishes = share([Lane(GPU, "x"), Lane(LINUX, "x")], [idle("a")])
    assert [wish.lane.label_set_id for wish in wishes] == [LINUX]


def test_a_cap_bounds_the_wishes_and_leaves_the_rest_to_others() -> None:
    lanes = [Lane(LINUX, "capped"), Lane(LINUX, "free")]
    assert given_to(share(lanes, [idle("a", free=10)], room={"capped": 2})) == {"capped": 2, "free": 8}
    assert given_to(share(lanes, [idle("a", free=10)], room={"capped": 0})) == {"free": 10}


def test_a_full_cap_of_the_only_one_that_an_agent_was_kept_for_frees_it() -> None:
    lanes = [Lane(LINUX, "a"), Lane(GPU, "b")]
    wishes = share(lanes, [idle("special", BOTH, 3)], room={"b": 1}, sole=[GPU])
    assert given_to(wishes) == {"a": 2, "b": 1}


def test_a_stream_of_newcomers_does_not_keep_anybody_waiting() -> None:
    fleet = Fleet({Lane(LINUX, "zebra"): 3}, {"a": (PLAIN, 1)})
    for number in range(60):
        fleet.jobs[Lane(LINUX, f"aa-{number:03}")] = 1
        fleet.pass_once()
        fleet.running.clear()
    assert fleet.jobs[Lane(LINUX, "zebra")] == 0


def test_who_could_not_be_served_for_long_is_owed_a_bounded_number_of_slots() -> None:
    fleet = Fleet({Lane(LINUX, "a"): 10_000, Lane(GPU, "b"): 10_000}, {"a": (PLAIN, 1)})
    for _ in range(500):
        fleet.pass_once()
        fleet.running.clear()
    assert fleet.started == {"a": 500}
    fleet.jobs = {Lane(LINUX, "a"): 10_000, Lane(LINUX, "b"): 10_000}
    for _ in range(CREDIT // SLOT + 10):
        fleet.pass_once()
        fleet.running.clear()
    assert fleet.started["a"] > 500


REPOSITORIES = ("a", "b", "c", "d")
label_sets = st.frozensets(st.sampled_from([LINUX, GPU, ARM]), min_size=1)
fleets = st.dictionaries(st.sampled_from(["p", "q", "r", "s"]), st.tuples(label_sets, st.integers(1, 3)), min_size=1)
backlogs = st.dictionaries(
    st.builds(Lane, st.sampled_from([LINUX, GPU, ARM]), st.sampled_from(REPOSITORIES)), st.integers(1, 40), min_size=1
)
all_caps = st.dictionaries(st.sampled_from(REPOSITORIES), st.integers(1, 4))


@given(backlogs, fleets, all_caps, st.randoms(use_true_random=False))
def test_no_slot_idles_beside_a_job_it_could_run_and_no_cap_is_exceeded(
    jobs: dict[Lane, int],
    agents: dict[str, tuple[frozenset[int], int]],
    caps: dict[str, int],
    choose: random.Random,
) -> None:
    fleet = Fleet(jobs, agents)
    fleet.caps = caps
    for _ in range(12):
        fleet.settle()
        used = Counter(agent for _, agent in fleet.running)
        busy = Counter(lane.repository for lane, _ in fleet.running)
        assert all(used[name] <= slots for name, (_, slots) in agents.items())
        assert all(lane.label_set_id in agents[agent][0] for lane, agent in fleet.running)
        assert all(busy[name] <= cap for name, cap in caps.items())
        for name, (sets, slots) in agents.items():
            if used[name] < slots:
                for lane, left in fleet.jobs.items():
                    full = busy[lane.repository] >= caps.get(lane.repository, 1_000)
                    assert not left or full or lane.label_set_id not in sets, (name, lane)
        fleet.finish(choose.randint(1, 4), choose)


@given(fleets, backlogs, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_nobody_starves(
    agents: dict[str, tuple[frozenset[int], int]], jobs: dict[Lane, int], choose: random.Random
) -> None:
    """Whatever the others have waiting, a repository that some agent can serve is served."""
    able = frozenset(number for sets, _ in agents.values() for number in sets)
    endless = {lane: 1_000_000 for lane in jobs if lane.label_set_id in able}
    fleet = Fleet(dict(endless), agents)
    for _ in range(200):
        fleet.settle()
        fleet.finish(choose.randint(1, 3), choose)
    slots = sum(slots for _, slots in agents.values())
    for name in {lane.repository for lane in endless}:
        assert fleet.started[name] > 0, (fleet.started, slots)


@given(st.integers(2, 6), st.integers(1, 5), st.integers(1, 4), st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_equal_demand_gets_equal_shares_within_one_slot(
    repositories: int, agents: int, slots: int, choose: random.Random
) -> None:
    fleet = Fleet(
        {Lane(LINUX, f"repo-{number}"): 1_000_000 for number in range(repositories)},
        {f"agent-{number}": (PLAIN, slots) for number in range(agents)},
    )
    for _ in range(100):
        fleet.settle()
        counts = [fleet.started[f"repo-{number}"] for number in range(repositories)]
        assert max(counts) - min(counts) <= 1
        fleet.finish(choose.randint(1, slots), choose)


@pytest.mark.parametrize("lanes", [1_000])
def test_many_lanes_and_many_agents_are_no_burden(lanes: int) -> None:
    """No time is asserted: it must only not grow with the square of what there is."""
    many = [Lane(number % 50, f"repo-{number}") for number in range(lanes)]
    offers = [idle(f"agent-{number}", frozenset(range(number % 50)), 4) for number in range(1_000)]
    wishes = share(many, offers, sole=[49])
    assert len(wishes) == 256
    assert len(charge(Turns(), many, [wish.lane for wish in wishes]).repositories) == lanes
