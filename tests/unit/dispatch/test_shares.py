from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from kici.engine.labels import Requirement, satisfies
from kici.orchestrator.dispatch.shares import share
from kici.orchestrator.store.queue import Lane


class Idle(Struct, frozen=True):
    session_id: str
    labels: frozenset[str]
    free: int = 1


LINUX = Requirement(("linux",))
GPU = Requirement(("gpu", "linux"))
WANTED = {1: LINUX, 2: GPU}


def test_slots_are_shared_between_repositories_in_turn() -> None:
    lanes = [Lane(1, "big"), Lane(1, "small")]
    wishes = share(lanes, WANTED, [Idle("a", frozenset({"linux"}), 4)])
    assert Counter(wish.lane.repository for wish in wishes) == {"big": 2, "small": 2}


def test_with_one_slot_the_turn_decides_who_is_first() -> None:
    lanes = [Lane(1, "x"), Lane(1, "y")]
    idle = [Idle("a", frozenset({"linux"}))]
    assert [share(lanes, WANTED, idle, turn)[0].lane.repository for turn in (0, 1, 2)] == ["x", "y", "x"]


def test_an_agent_that_alone_can_run_some_job_is_kept_for_it() -> None:
    lanes = [Lane(1, "x"), Lane(2, "x")]
    idle = [Idle("special", frozenset({"linux", "gpu"})), Idle("plain", frozenset({"linux"}))]
    assert {wish.lane.label_set_id: wish.session_id for wish in share(lanes, WANTED, idle)} == {
        1: "plain",
        2: "special",
    }


def test_a_lane_that_nobody_can_serve_costs_nobody_a_slot() -> None:
    wishes = share([Lane(2, "x"), Lane(1, "x")], WANTED, [Idle("a", frozenset({"linux"}))])
    assert [wish.lane.label_set_id for wish in wishes] == [1]


@given(
    st.lists(st.builds(Lane, st.sampled_from([1, 2]), st.sampled_from("abc")), unique=True),
    st.lists(
        st.builds(Idle, st.uuids().map(str), st.frozensets(st.sampled_from(["linux", "gpu"])), st.integers(1, 4)),
        max_size=5,
    ),
    st.integers(0, 10),
)
def test_no_slot_is_given_twice_or_against_its_labels_or_left_idle(
    lanes: list[Lane], idle: list[Idle], turn: int
) -> None:
    wishes = share(lanes, WANTED, idle, turn)
    labels = {agent.session_id: agent.labels for agent in idle}
    used = Counter(wish.session_id for wish in wishes)
    assert all(satisfies(WANTED[wish.lane.label_set_id], labels[wish.session_id]) for wish in wishes)
    for agent in idle:
        useful = any(satisfies(WANTED[lane.label_set_id], agent.labels) for lane in lanes)
        assert used[agent.session_id] == (agent.free if useful else 0)
