"""The end of an example: everybody does all that they can, and time passes, until nothing is left to do."""

from __future__ import annotations

import random

from kici.engine.lifecycle import JobStatus
from tests.integration.model import laws, messages, moves
from tests.integration.model.database import DEADLINES
from tests.integration.model.life import SERVICES
from tests.integration.model.play import ENDS_JOBS, Asked, Play

ROUNDS = 400
"""In which all must be over."""
UNREST = 12
"""In so many rounds coordinators are still killed."""
STANDING = 30
"""So many rounds after one another without any change, and nothing will ever change."""


def finish(play: Play) -> None:
    """Everybody does all that they can, and time passes, until nothing is left to do."""
    play.willing = True
    standing = 0
    for number in range(ROUNDS):
        play.choices = random.Random(number)
        play.live()
        before = play.seen
        play.fire(_everything(play), kills=1 if number < UNREST else 0)
        if (play.seen.quiet and play.ledger.deliveries >= play.deliveries.keys()) or standing > STANDING:
            break
        unchanged = (play.seen.jobs, play.seen.rows) == (before.jobs, before.rows)
        standing = standing + 1 if unchanged else 0
        play.forget_the_dead()
        play.let_pass("delays")
        if standing:
            _let_time_pass(play, standing)
    play.must_hold(list(laws.unfinished(play.seen)))


def _let_time_pass(play: Play, standing: int) -> None:
    """So many rounds have changed nothing. What ends jobs comes last."""
    for what in DEADLINES:
        if what not in ENDS_JOBS or (what == "waits" and standing > 5) or standing > 10:
            play.let_pass(what)
    play.fire([moves.sweep(play.lives[0], service) for service in sorted(SERVICES)], kills=0)


def _everything(play: Play) -> list[Asked]:
    asked = moves.a_renewal(play)
    for delivery_id, delivery in play.deliveries.items():
        if delivery_id not in play.ledger.deliveries:
            asked.append((moves.any_life(play), delivery))
    for agent in play.agents:
        if agent.life is None:
            asked.append((moves.any_life(play), agent.hello()))
            continue
        if agent.silent:
            asked.append((agent.life, messages.BeHeard(agent.session)))
        for work in list(agent.works.values()):
            agent.go_on(work, "success", moves.seen_steps(play, work.ref))
        asked += [(agent.life, messages.Tell(agent.session, agent.name, frame)) for frame in agent.unanswered]
    seen = play.seen
    for life in play.lives:
        here = tuple(agent.session for agent in play.agents if agent.life is life)
        if len(seen.runs) < len(play.deliveries):
            asked.append((life, messages.WorkEvents()))
        if here and any(job.status is JobStatus.CANCELLING for job in seen.jobs.values()):
            asked.append((life, messages.AskStops(here)))
        if here and any(row.session_id is None for row in seen.rows.values()):
            asked.append((life, messages.Dispatch(dict.fromkeys(here, 8))))
    return asked
