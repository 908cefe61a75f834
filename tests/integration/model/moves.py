"""What may be asked of the lives at some moment: each function makes one move of somebody, or none where there is none
to be made. `some` draws from them by their weight."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.model import messages
from tests.integration.model.agents import ENDS, Agent, Ref, lies
from tests.integration.model.life import SERVICES
from tests.integration.model.lives import Life
from tests.integration.model.play import Asked, Play


def some(play: Play, size: int) -> list[Asked]:
    """About so many requests."""
    asked = hellos(play)
    for _ in range(2 * size):
        if len(asked) >= size:
            break
        asked += play.choices.choices(list(MOVES), list(MOVES.values()))[0](play)
    return asked


def any_life(play: Play) -> Life:
    return play.choices.choice(play.lives)


def any_agent(play: Play, *, connected: bool) -> Agent | None:
    agents = [agent for agent in play.agents if (agent.life is not None) is connected]
    return play.choices.choice(agents) if agents else None


def a_delivery(play: Play) -> list[Asked]:
    """One that is not acknowledged, or one again that is."""
    waiting = [one for one in play.deliveries if one not in play.ledger.deliveries]
    again = list(play.deliveries) if play.choices.random() < 0.1 else []
    if not waiting + again:
        return []
    delivery_id = play.choices.choice(again or waiting)
    return [(any_life(play), play.deliveries[delivery_id])]


def working_events(play: Play) -> list[Asked]:
    if len(play.seen.runs) == len(play.ledger.deliveries) and play.choices.random() < 0.9:
        return []
    return [(any_life(play), messages.WorkEvents())]


def hellos(play: Play) -> list[Asked]:
    """Agents without a socket do not rest."""
    return [
        (any_life(play), agent.hello()) for agent in play.agents if agent.life is None and play.choices.random() < 0.5
    ]


def a_hello(play: Play) -> list[Asked]:
    """Also of an agent that has a socket: it has noticed before the coordinator that it is broken."""
    agent = any_agent(play, connected=play.choices.random() < 0.5)
    if agent is None or agent.calling:
        return []
    return [(any_life(play), agent.hello())]


def a_dispatch(play: Play) -> list[Asked]:
    life = any_life(play)
    here = [agent.session for agent in play.agents if agent.life is life]
    free = {session: play.choices.randint(1, 3) for session in here if play.choices.random() < 0.8}
    gone = tuple(session for session in free if play.choices.random() < 0.1)
    return [(life, messages.Dispatch(free, gone, play.choices.random() < 0.5))] if free else []


def frames(play: Play) -> list[Asked]:
    """An agent goes on with its work and tells of it: in order or not, all of it or not, once or twice."""
    agent = any_agent(play, connected=True)
    if agent is None or agent.life is None:
        return []
    for work in list(agent.works.values()):
        if play.choices.random() < 0.7:
            agent.go_on(work, play.choices.choice(ENDS), seen_steps(play, work.ref))
    telling = [frame for frame in agent.unanswered if play.choices.random() < 0.8][:5]
    telling += [frame for frame in telling if play.choices.random() < 0.15]
    if play.choices.random() < 0.3:
        play.choices.shuffle(telling)
    return [(agent.life, messages.Tell(agent.session, agent.name, frame)) for frame in telling]


def an_old_frame(play: Play) -> list[Asked]:
    """Something that was told before, by its agent again, or as if by another."""
    agent = any_agent(play, connected=True)
    if agent is None or agent.life is None or not play.told:
        return []
    old = play.choices.choice(play.told)
    return [(agent.life, messages.Tell(agent.session, agent.name, old.frame))]


def a_lie(play: Play) -> list[Asked]:
    """Something about an attempt that is another agent's, is over, or has not begun."""
    agent = any_agent(play, connected=True)
    accepted = [row for row in play.seen.rows.values() if row.accepted]
    if agent is None or agent.life is None or not accepted:
        return []
    row = play.choices.choice(accepted)
    attempt = row.attempt
    if row.session_id is not None and play.seen.sessions[row.session_id].agent_id == agent.name:
        attempt += play.choices.choice([-1, 7])
    frame = play.choices.choice(lies(row.job_id, attempt))
    return [(agent.life, messages.Tell(agent.session, agent.name, frame, is_false=True))]


def a_cut(play: Play) -> list[Asked]:
    agent = any_agent(play, connected=True)
    if agent is None or agent.life is None:
        return []
    life = agent.life
    agent.cut()
    return [(life, messages.Cut(agent.session))]


def a_silence(play: Play) -> list[Asked]:
    agent = any_agent(play, connected=True)
    if agent is None or agent.life is None:
        return []
    agent.silent = True
    return [(agent.life, messages.FallSilent(agent.session))]


def a_return(play: Play) -> list[Asked]:
    return [(agent.life, messages.BeHeard(agent.session)) for agent in play.agents if agent.life and agent.silent]


def a_goodbye(play: Play) -> list[Asked]:
    agent = any_agent(play, connected=True)
    if agent is None or agent.life is None or agent.works or agent.unanswered:
        return []
    life = agent.life
    agent.cut()
    return [(life, messages.Leave(agent.session))]


def a_crash(play: Play) -> list[Asked]:
    agent = play.choices.choice(play.agents)
    play.trace.append(f"{agent} crashes")
    agent.crash()
    return []


def asking_stops(play: Play) -> list[Asked]:
    life = any_life(play)
    here = tuple(agent.session for agent in play.agents if agent.life is life)
    return [(life, messages.AskStops(here))] if here else []


def a_cancellation(play: Play) -> list[Asked]:
    runs = [run.run_id for run in play.seen.runs.values() if not run.ended]
    if not runs or play.choices.random() < 0.9:
        return []
    return [(any_life(play), messages.CancelRun(play.choices.choice(runs), play.choices.random() < 0.3))]


def a_renewal(play: Play) -> list[Asked]:
    """A coordinator whose lease has lapsed takes it anew, and hears its agents."""
    asked: list[Asked] = []
    for life in play.lives:
        if life.instance in play.lapsed:
            play.lapsed.discard(life.instance)
            asked.append((life, messages.RenewLease()))
            asked += [(life, messages.BeHeard(agent.session)) for agent in play.agents if agent.life is life]
    return asked


def a_sweep(play: Play) -> list[Asked]:
    if play.leader in play.dead and play.choices.random() < 0.9:
        return []
    leader = next((life for life in play.lives if life.instance == play.leader), any_life(play))
    return [sweep(leader, play.choices.choice(sorted(SERVICES)))]


def sweep(life: Life, service: str) -> Asked:
    return life, messages.Sweep(service)


def seen_steps(play: Play, ref: Ref) -> int:
    job = play.seen.jobs.get(ref[0])
    return job.steps if job is not None else 1


MOVES: dict[Callable[[Play], list[Asked]], int] = {
    a_delivery: 4,
    working_events: 3,
    a_hello: 2,
    a_dispatch: 7,
    frames: 20,
    an_old_frame: 3,
    a_lie: 3,
    a_cut: 1,
    a_silence: 2,
    a_return: 1,
    a_goodbye: 1,
    a_crash: 1,
    asking_stops: 2,
    a_cancellation: 2,
    a_renewal: 1,
    a_sweep: 4,
}
