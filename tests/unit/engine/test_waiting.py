from __future__ import annotations

from kici.engine import labels
from kici.engine.waiting import AgentView, about_to_be_sent, for_agent, for_jobs

GPU = labels.requirement(["linux", "gpu"])


def agent(name: str, *own: str, slots: int = 1, free: int = 1, draining: bool = False) -> AgentView:
    return AgentView(name, frozenset(("kici:os:linux", *own)), slots, free, draining)


def test_nobody_is_there() -> None:
    assert for_agent(GPU, []) == "no agent is connected (it wants gpu, kici:os:linux): start one with `kici-agent`"


def test_a_label_that_nobody_has_is_named_with_the_nearest_one() -> None:
    sentence = for_agent(labels.requirement(["linux", "gpuu"]), [agent("a", "gpu")])
    assert sentence == "no connected agent has the label gpuu (did you mean gpu?)"


def test_labels_that_only_different_agents_have_name_the_closest_agent() -> None:
    sentence = for_agent(labels.requirement(["gpu", "big"]), [agent("a", "gpu"), agent("b", "big")])
    assert sentence == "no connected agent has all labels that it wants: the closest, a, lacks big"


def test_busy_draining_and_free_agents_are_told_apart() -> None:
    assert "is busy (2/2 slots in use)" in for_agent(GPU, [agent("a", "gpu", slots=2, free=0)])
    assert "is draining (1 of 1)" in for_agent(GPU, [agent("a", "gpu", draining=True)])
    assert for_agent(GPU, [agent("a", "gpu")]) == ""
    assert "is free (0/1 slots in use)" in about_to_be_sent(GPU, [agent("a", "gpu")])


def test_agents_without_room_are_named_with_their_reason_unless_another_has_room() -> None:
    full = AgentView("a", frozenset(("kici:os:linux", "gpu")), 1, 1, not_taking="disk: 1 byte free")
    assert for_agent(GPU, [full]) == "no agent with gpu, kici:os:linux has room (1 of 1): a: disk: 1 byte free"
    assert for_agent(GPU, [full, agent("b", "gpu")]) == ""
    assert "is busy (1/1 slots in use)" in for_agent(GPU, [full, agent("b", "gpu", free=0)])


def test_jobs_are_listed_in_order() -> None:
    assert for_jobs(["b", "a"]) == "waiting for jobs a, b"
    assert for_jobs(["a"]) == "waiting for job a"
