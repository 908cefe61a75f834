"""Why a job waits, in words. The same sentence stands in the API, the command line and the run page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from msgspec import Struct

from kici.engine import labels
from kici.engine.patterns import show


class AgentView(Struct, frozen=True):
    """What is known of a connected agent."""

    agent_id: str
    labels: frozenset[str]
    slots: int
    free: int
    draining: bool = False


def for_jobs(names: Iterable[str]) -> str:
    listed = sorted(names)
    return f"waiting for {'job' if len(listed) == 1 else 'jobs'} {', '.join(listed)}"


def for_agent(wanted: labels.Requirement, agents: Sequence[AgentView]) -> str:
    """Why no agent has taken the job yet: nobody is there, nobody has the labels, or all that have are busy."""
    asked = ", ".join((*wanted.labels, *map(show, wanted.patterns))) or "no label"
    if not agents:
        return f"no agent is connected (it wants {asked}): start one with `kici-agent`"
    able = [agent for agent in agents if labels.satisfies(wanted, agent.labels)]
    if able:
        return _busy(able, asked)
    return f"no connected agent has {_lacking(wanted, agents)}{_nearest(wanted, agents)}"


def _busy(able: Sequence[AgentView], asked: str) -> str:
    taking = [agent for agent in able if not agent.draining]
    if not taking:
        return f"every agent with {asked} is draining ({len(able)} of {len(able)})"
    slots = sum(agent.slots for agent in taking)
    used = slots - sum(agent.free for agent in taking)
    if used >= slots:
        return f"every agent with {asked} is busy ({used}/{slots} slots in use)"
    return f"an agent with {asked} is free ({used}/{slots} slots in use): it is about to be sent"


def _lacking(wanted: labels.Requirement, agents: Sequence[AgentView]) -> str:
    """Of the agent that comes closest; if single labels are missing everywhere, those."""
    nowhere = [label for label in wanted.labels if not any(label in agent.labels for agent in agents)]
    if nowhere:
        return f"the label {', '.join(nowhere)}" if len(nowhere) == 1 else f"the labels {', '.join(nowhere)}"
    best = min(agents, key=lambda agent: (len(labels.missing(wanted, agent.labels)), agent.agent_id))
    lacking = ", ".join(labels.missing(wanted, best.labels))
    return f"all labels that it wants: the closest, {best.agent_id}, lacks {lacking}"


def _nearest(wanted: labels.Requirement, agents: Sequence[AgentView]) -> str:
    known = sorted({label for agent in agents for label in agent.labels})
    for label in wanted.labels:
        if label in known:
            continue
        near = get_close_matches(label, known, n=1, cutoff=0.6)
        if near:
            return f"; did you mean {near[0]}?"
    return ""
