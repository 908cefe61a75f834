"""Why a job waits, in words. The same sentence stands in the API, the command line and the run page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches

from msgspec import Struct

from kici.engine import labels
from kici.engine.patterns import matches, show

COUNTED = 1_000
"""A place in a lane is told exactly up to this one."""


_FULL_TOLD = 3
"""Agents without room that are named."""


class AgentView(Struct, frozen=True):
    """What is known of a connected agent."""

    agent_id: str
    labels: frozenset[str]
    slots: int
    free: int
    draining: bool = False
    not_taking: str = ""
    """Why it takes no job for now; empty = it does."""


class Holder(Struct, frozen=True):
    """Who has a slot of a concurrency group."""

    run_id: str
    job_name: str | None
    """None: the whole run."""
    since: datetime | None
    stopping: bool = False
    """It was asked to stop."""


def all_of(reasons: Iterable[str]) -> str:
    return "; ".join(reason for reason in reasons if reason)


# ── before the queue ──────────────────────────────────────────────────────────────────────────────────────────────────


def for_jobs(names: Iterable[str]) -> str:
    listed = sorted(names)
    return f"waiting for {'job' if len(listed) == 1 else 'jobs'} {', '.join(listed)}"


def for_place_in_fan_out(base: str, running: int, max_parallel: int) -> str:
    return f"waiting for a place in the fan-out of {base}: {running} of {max_parallel} run at once (max_parallel)"


def for_group(group: str, holders: Sequence[Holder], place: int, waiting: int, *, whole_run: bool) -> str:
    who = "its run is waiting" if whole_run else "waiting"
    line = f"{ordinal(place)} of {waiting} in line" if waiting > 1 else "next in line"
    if not holders:
        return f"{who} for the concurrency group {group}, {line}"
    shown = ", ".join(_holder(one) for one in holders[:3])
    more = f" and {len(holders) - 3} more" if len(holders) > 3 else ""
    return f"{who} for the concurrency group {group}, held by {shown}{more}; {line}"


def _holder(one: Holder) -> str:
    what = f"job {one.job_name} of run {one.run_id}" if one.job_name is not None else f"run {one.run_id}"
    since = f" since {instant(one.since)}" if one.since is not None else ""
    return f"{what}{since}{' (asked to stop)' if one.stopping else ''}"


# ── in the queue ──────────────────────────────────────────────────────────────────────────────────────────────────────


def paused(scope: str, value: str, *, by: str, since: datetime, why: str) -> str:
    what = {
        "repository": f"repository {value} is paused",
        "label": f"jobs that want {value} are paused",
    }.get(scope, "the queue is paused")
    return f"{what} by {by} since {instant(since)}" + (f": {why}" if why else "")


def at_cap(repository: str, running: int, cap: int) -> str:
    return f"repository {repository} is at its cap ({running} of {cap} running)"


def for_next_attempt(attempt: int, in_s: float, why: str) -> str:
    return f"attempt {attempt} starts in {max(in_s, 0):.0f} s" + (f": {why}" if why else "")


def not_accepted(agent_id: str, since: datetime | None, until: datetime | None) -> str:
    told = f" since {instant(since)}" if since is not None else " yet"
    return f"sent to agent {agent_id}, which has not accepted it{told}" + (
        f"; it is taken back at {instant(until)}" if until is not None else ""
    )


def for_machine(error: str) -> str:
    return f"the last try to start an agent for it failed: {error}"


def place_in_lane(ahead: int, total: int, oldest_s: float) -> str:
    """Empty for the only one. More than `COUNTED` are not counted."""
    if total <= 1:
        return ""
    of = f"{total}" if total <= COUNTED else f"more than {COUNTED:,}"
    place = f"{ordinal(ahead + 1)} of {of} in its lane" if ahead < COUNTED else f"after {COUNTED:,} others in its lane"
    return f"{place}; the oldest has waited {duration(oldest_s)}"


def for_agent(wanted: labels.Requirement, agents: Sequence[AgentView]) -> str:
    """Why no agent has taken the job yet: nobody is there, nobody has the labels, or all that have are busy.

    Empty: an agent that can run it is free.
    """
    asked = ", ".join((*wanted.labels, *map(show, wanted.patterns))) or "no label"
    if not agents:
        return f"no agent is connected (it wants {asked}): start one with `kici-agent`"
    able = [agent for agent in agents if labels.satisfies(wanted, agent.labels)]
    if able:
        return _busy(able, asked)
    known = {label for agent in agents for label in agent.labels}
    return f"no connected agent has {_lacking(wanted, agents)}{_nearest(wanted.labels, known)}"


def about_to_be_sent(wanted: labels.Requirement, agents: Sequence[AgentView]) -> str:
    """For a job that nothing keeps from being claimed."""
    able = [
        agent
        for agent in agents
        if labels.satisfies(wanted, agent.labels) and not agent.draining and not agent.not_taking
    ]
    slots = sum(agent.slots for agent in able)
    used = slots - sum(agent.free for agent in able)
    asked = ", ".join((*wanted.labels, *map(show, wanted.patterns))) or "no label"
    return f"an agent with {asked} is free ({used}/{slots} slots in use): it is about to be sent"


def never_offered(wanted: labels.Requirement, known: Collection[str]) -> tuple[str, ...]:
    """What the job wants and nothing that is known offers, as its author would write it."""
    exact = [label for label in wanted.labels if label not in known]
    patterns = [show(one) for one in wanted.patterns if not any(matches([one], label) for label in known)]
    return (*exact, *patterns)


def unservable(lacking: Sequence[str], known: Collection[str], *, days: int) -> str:
    what = f"{'the label' if len(lacking) == 1 else 'the labels'} {', '.join(lacking)}"
    return (
        f"nothing here could ever offer {what}: no agent of the last {days} days, no agent token and no scaler"
        f" names {'it' if len(lacking) == 1 else 'them'}{_nearest(lacking, known)}"
    )


# ── with an agent ─────────────────────────────────────────────────────────────────────────────────────────────────────


def recovering(agent_id: str, since: datetime, retry_at: datetime | None, give_up_at: datetime | None) -> str:
    """`retry_at`: then another attempt starts. `give_up_at`: until then the agent may report."""
    told = f"recovering: agent {agent_id} is silent since {instant(since)}"
    if retry_at is not None:
        return f"{told}; if it stays so, the next attempt starts at {instant(retry_at)}"
    if give_up_at is not None:
        return f"{told}; until {instant(give_up_at)} it may report the end, after that the job is given up as lost"
    return told


def cancelling(agent_id: str, since: datetime | None, until: datetime | None, *, force: bool) -> str:
    told = f"cancelling{f' since {instant(since)}' if since is not None else ''}"
    by = f"; at {instant(until)} it is ended without it" if until is not None else ""
    return f"{told}: agent {agent_id} has not reported the end yet{' (forced)' if force else ''}{by}"


def not_waiting(status: str, agent_id: str | None, attempt: int, since: datetime | None, error: str | None) -> str:
    """What to say of a job that does not wait: it runs, or has ended."""
    when = f" since {instant(since)}" if since is not None else ""
    if status == "running":
        return f"it does not wait: attempt {attempt} runs on agent {agent_id}{when}"
    return f"it does not wait: it has ended as {status}" + (f" ({error})" if error else "")


# ── words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def instant(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(seconds: float) -> str:
    """The largest unit that says something: `40 s`, `4 min`, `3 h`, `2 days`."""
    seconds = max(seconds, 0.0)
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size or (unit == "min" and seconds >= size):
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def _busy(able: Sequence[AgentView], asked: str) -> str:
    taking = [agent for agent in able if not agent.draining and not agent.not_taking]
    full = [agent for agent in able if agent.not_taking and not agent.draining]
    if not taking and full:
        told = "; ".join(f"{agent.agent_id}: {agent.not_taking}" for agent in full[:_FULL_TOLD])
        return f"no agent with {asked} has room ({len(full)} of {len(able)}): {told}"
    if not taking:
        return f"every agent with {asked} is draining ({len(able)} of {len(able)})"
    slots = sum(agent.slots for agent in taking)
    used = slots - sum(agent.free for agent in taking)
    return f"every agent with {asked} is busy ({used}/{slots} slots in use)" if used >= slots else ""


def _lacking(wanted: labels.Requirement, agents: Sequence[AgentView]) -> str:
    """Of the agent that comes closest; if single labels are missing everywhere, those."""
    nowhere = [label for label in wanted.labels if not any(label in agent.labels for agent in agents)]
    if nowhere:
        return f"the label {', '.join(nowhere)}" if len(nowhere) == 1 else f"the labels {', '.join(nowhere)}"
    best = min(agents, key=lambda agent: (len(labels.missing(wanted, agent.labels)), agent.agent_id))
    lacking = ", ".join(labels.missing(wanted, best.labels))
    return f"all labels that it wants: the closest, {best.agent_id}, lacks {lacking}"


def _nearest(lacking: Sequence[str], known: Collection[str]) -> str:
    for label in lacking:
        if label in known:
            continue
        near = get_close_matches(label, sorted(known), n=1, cutoff=0.6)
        if near:
            return f" (did you mean {near[0]}?)"
    return ""
