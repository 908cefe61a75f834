"""One example: agents, senders of webhooks, operators and time, against lives of coordinators that are killed.

What happens, happens in volleys: requests to several lives, side by side, and often a SIGKILL in the midst of them.
After each volley the database is looked at and the laws are checked.
"""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from tests.integration.model import laws, messages
from tests.integration.model.agents import Agent, Ref
from tests.integration.model.database import EMPTY, Database
from tests.integration.model.laws import Ledger
from tests.integration.model.lives import PATIENCE_S, Life, Zygote
from tests.integration.model.messages import Answer, Body
from tests.integration.model.workflows import GPU, LINUX

Asked = tuple[Life, Body]

LIVES = 2
MAX_ATTEMPTS = 5
ENDS_JOBS = ("waits", "runs", "jobs")
"""Deadlines after which a job is over."""
TRACE = 400
"""Lines of what was done that are shown when a law is broken."""


class Tally(Struct):
    operations: int = 0
    """Requests, deadlines that passed, kills."""
    kills: int = 0
    kills_inside: int = 0
    """Of them, while something had no answer yet."""
    volleys: int = 0
    examples: int = 0
    runs: int = 0
    answers: Counter[str] = msgspec.field(default_factory=Counter)
    """By request and answer."""
    endings: Counter[str] = msgspec.field(default_factory=Counter)
    """Of jobs."""

    def line(self) -> str:
        return (
            f"{self.examples} examples, {self.operations} operations, {self.kills} kills ({self.kills_inside} inside an"
            f" operation), {self.runs} runs"
        )


class Arena(Struct):
    """What examples share."""

    zygote: Zygote
    database: Database
    tally: Tally
    volley_s: float = 0.01
    """How long a volley takes: kills fall into that time."""


class Play:
    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.tally = arena.tally
        self.database = arena.database
        self.database.clear()
        self.choices = random.Random(0)
        """Of the volley that is being made."""
        self.lives: list[Life] = []
        self.dead: list[str] = []
        """Coordinators that were killed and whose lease has not lapsed."""
        self.lapsed: set[str] = set()
        """Living ones whose lease has."""
        self.leader = ""
        """Who has swept last."""
        self.agents = [Agent(f"agent-{number}", GPU if number == 3 else LINUX) for number in range(4)]
        self.deliveries: dict[str, messages.TakeIn] = {}
        """All that was ever sent, by their ids."""
        self.told: deque[messages.Tell] = deque(maxlen=60)
        """The last frames of agents."""
        self.ledger = Ledger()
        self.seen = EMPTY
        """The database after the last volley."""
        self.willing = False
        """Agents accept whatever they are sent."""
        self.broken = False
        """A law was."""
        self.trace: deque[str] = deque(maxlen=TRACE)
        self._refused: list[messages.Tell] = []
        """Since the last look."""

    def close(self) -> None:
        for life in self.lives:
            life.close()

    def live(self) -> None:
        begun = []
        while len(self.lives) < LIVES:
            life = self.arena.zygote.begin(self.database.url, max_attempts=MAX_ATTEMPTS)
            self.lives.append(life)
            begun.append(life)
        for life in begun:
            life.wait_ready()

    def fire(self, asked: Sequence[Asked], kills: int) -> None:
        self.ledger.passes = [0, self.ledger.passes[0]]
        began = time.monotonic()
        for life, body in asked:
            self.ask(life, body)
        self.tally.volleys += 1
        for life in self.choices.sample(self.lives, kills):
            self._kill(life, self.arena.volley_s * self.choices.random() * self.choices.random())
        was_quick = self._await()
        for agent in self.agents:
            agent.calling = False
        if was_quick and not kills:
            self.arena.volley_s += 0.1 * (time.monotonic() - began - self.arena.volley_s)
        self._check()

    def ask(self, life: Life, body: Body) -> None:
        self.trace.append(f"{life.instance} ← {body}")
        self.tally.operations += 1
        match body:
            case messages.Tell(frame=frame, is_false=False):
                self.ledger.told_of(frame)
                self.told.append(body)
            case messages.Dispatch():
                self.ledger.passes[0] += 1
            case messages.CancelRun(run_id=run_id):
                self.ledger.cancelled.add(run_id)
        life.ask(body)

    def _kill(self, life: Life, delay_s: float) -> None:
        time.sleep(delay_s)
        answered = life.kill()
        self.trace.append(f"{life.instance} killed after {delay_s * 1000:.1f} ms, {len(life.asked)} requests open")
        self.tally.operations += 1
        self.tally.kills += 1
        self.tally.kills_inside += bool(life.asked)
        self.lives.remove(life)
        if life.instance not in self.lapsed:
            self.dead.append(life.instance)
        self.lapsed.discard(life.instance)
        for body, answer in answered:
            self._hear(life, body, answer)
        for agent in self.agents:
            if agent.life is life:
                agent.cut()

    def _await(self) -> bool:
        """Until nothing is owed. What waits for a lease or a session that is lost gets it back, or is cut off: False
        then."""
        was_quick = True
        for life in self.lives:
            look_at = time.monotonic() + self._regain_after_s(life)
            give_up_at = time.monotonic() + PATIENCE_S
            while life.asked:
                for body, answer in life.answers(until=look_at):
                    self._hear(life, body, answer)
                if life.asked and time.monotonic() >= look_at:
                    if time.monotonic() > give_up_at:
                        self.must_hold([f"{life.instance} owes {list(life.asked.values())}"])
                    was_quick = False
                    self._regain(life)
                    look_at = time.monotonic() + self._regain_after_s(life)
        return was_quick

    def _regain_after_s(self, life: Life) -> float:
        doubtful = life.instance in self.lapsed or any(agent.silent for agent in self.agents if agent.life is life)
        return 0.03 if doubtful else 0.3

    def _regain(self, life: Life) -> None:
        if life.instance in self.lapsed:
            self._renew(life)
        for session_id in sorted({body.session_id for body in life.asked.values() if isinstance(body, messages.Tell)}):
            if self.choices.random() < 0.5:
                self.ask(life, messages.BeHeard(session_id))
                continue
            self.ask(life, messages.Cut(session_id))
            for agent in self.agents:
                if agent.session == session_id:
                    agent.cut()

    def _renew(self, life: Life) -> None:
        self.ask(life, messages.RenewLease())
        self.lapsed.discard(life.instance)

    def _check(self) -> None:
        now = self.database.look()
        self.must_hold(laws.broken(now, self.seen, self.ledger))
        self.must_hold([problem for tell in self._refused for problem in laws.wrongly_refused(now, tell)])
        self._refused.clear()
        running = Counter(job_id for agent in self.agents for job_id, _ in agent.runs())
        self.must_hold(
            [f"{number} attempts of {job_id} run at once" for job_id, number in running.items() if number > 1]
        )
        self.seen = now

    def must_hold(self, problems: Sequence[str]) -> None:
        if problems:
            self.broken = True
            trace = "\n".join(self.trace)
            raise AssertionError("\n".join(problems) + f"\n\nwhat was done, the last thing last:\n{trace}")

    # ── answers ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _hear(self, life: Life, body: Body, answer: Answer) -> None:
        self.trace.append(f"{life.instance} → {answer} to {body}")
        self.tally.answers[f"{_kind(body)} → {type(answer).__name__}"] += 1
        if isinstance(answer, messages.Broken):
            self.must_hold([f"{body} broke:\n{answer.trace}"])
        match body, answer:
            case messages.TakeIn(delivery_id), messages.TakenIn():
                self.ledger.deliveries.add(delivery_id)
            case messages.Hello(agent_id), messages.Adopted():
                self._named(agent_id).welcomed(life, answer)
            case messages.Tell(), messages.Taken() | messages.Refused() | messages.Superseded():
                self._heard_about(life, body, answer)
            case messages.Dispatch(), messages.Dispatched():
                self._sent(life, answer)
            case messages.AskStops(), messages.Stops():
                for stop in answer.stops:
                    for agent in self._at(life, stop.session_id):
                        agent.stop(stop)
            case messages.Sweep(), messages.Done():
                self.leader = life.instance
            case messages.BeHeard(session_id), _:
                for agent in self._at(life, session_id):
                    agent.silent = False
                    if isinstance(answer, messages.Unable):
                        agent.cut()

    def _heard_about(self, life: Life, tell: messages.Tell, answer: Answer) -> None:
        if tell.is_false:
            self.must_hold([f"{tell} was taken"] if isinstance(answer, messages.Taken) else [])
            return
        if isinstance(answer, messages.Taken):
            self.ledger.acknowledged(tell.frame)
        for agent in self._at(life, tell.session_id):
            is_news = agent.name == tell.agent_id and agent.answered(tell.frame, answer)
            if is_news and isinstance(answer, messages.Refused):
                self._refused.append(tell)

    def _sent(self, life: Life, dispatched: messages.Dispatched) -> None:
        for sent in dispatched.sent:
            ref: Ref = sent.job_id, sent.attempt
            self.must_hold([f"{ref} was sent twice"] if ref in self.ledger.dispatched else [])
            self.ledger.dispatched.add(ref)
            for agent in self._at(life, sent.session_id):
                agent.dispatched(sent, accepts=self.willing or self.choices.random() < 0.9)

    def _named(self, name: str) -> Agent:
        return next(agent for agent in self.agents if agent.name == name)

    def _at(self, life: Life, session_id: str) -> list[Agent]:
        """The agent whose socket is there under this session, if there is one."""
        return [agent for agent in self.agents if agent.life is life and agent.session == session_id]

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def forget_the_dead(self) -> None:
        self.lapse(self.dead)
        self.dead = []

    def let_pass(self, what: str, *, tenths: int = 10, salt: str = "") -> None:
        self.trace.append(f"time passes: {what}")
        self.tally.operations += 1
        touched = self.database.expire(what, tenths=tenths, salt=salt)
        if what in ENDS_JOBS:
            self.ledger.too_long |= touched
        if what == "recoveries":
            for agent in self.agents:
                if agent.name in touched:
                    agent.outlive_silence()

    def lapse(self, instances: Sequence[str]) -> None:
        if instances:
            self.trace.append(f"leases lapse: {instances}")
            self.tally.operations += 1
            self.database.lapse(instances)
            if self.leader in instances:
                self.database.expire("the leader's lease")
                self.database.expire("event claims")


def _kind(body: Body) -> str:
    return type(body.frame).__name__ if isinstance(body, messages.Tell) else type(body).__name__
