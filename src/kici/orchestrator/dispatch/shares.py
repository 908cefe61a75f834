"""Which free slot wishes for which lane. A rule on values: lanes, what they want, who is idle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from kici.engine import labels
from kici.orchestrator.dispatch.contract import IdleAgent
from kici.orchestrator.store.queue import Lane


class Wish(Struct, frozen=True):
    lane: Lane
    session_id: str


def share(
    lanes: Sequence[Lane], requirements: Mapping[int, labels.Requirement], idle: Sequence[IdleAgent], turn: int = 0
) -> list[Wish]:
    """One slot after the other to the lanes in turn, `turn` says whose it is first, until no lane can take another
    slot.

    A lane gets the agent that fits the fewest other lanes, so an agent that alone can run some job is kept for it.
    """
    able = {
        lane: [agent for agent in idle if labels.satisfies(requirements[lane.label_set_id], agent.labels)]
        for lane in lanes
        if lane.label_set_id in requirements
    }
    fits = {agent.session_id: sum(agent in agents for agents in able.values()) for agent in idle}
    free = {agent.session_id: agent.free for agent in idle}
    waiting = [lane for lane in able if able[lane]]
    waiting = waiting[turn % len(waiting) :] + waiting[: turn % len(waiting)] if waiting else []
    wishes: list[Wish] = []
    while waiting:
        still = []
        for lane in waiting:
            candidates = [agent.session_id for agent in able[lane] if free[agent.session_id] > 0]
            if not candidates:
                continue
            best = min(candidates, key=lambda one: (fits[one], -free[one]))
            free[best] -= 1
            wishes.append(Wish(lane, best))
            still.append(lane)
        waiting = still
    return wishes
