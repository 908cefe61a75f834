"""The state machine: agents, senders of webhooks, operators and time, against lives of coordinators that are killed.

A step is a volley: requests to one or two lives, side by side, and often a SIGKILL in the midst of them. After each
volley the database is looked at and the laws are checked; at the end everybody finishes what there is.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from msgspec import Struct

from kici.engine.events import Event, EventType
from kici.engine.lifecycle import JobStatus
from kici.engine.lockfile import LockWorkflow
from tests.integration.model import laws, messages
from tests.integration.model.agents import ENDS, Agent, Ref
from tests.integration.model.database import DEADLINES, EMPTY, Database
from tests.integration.model.laws import Ledger
from tests.integration.model.life import SERVICES
from tests.integration.model.lives import PATIENCE_S, Life, Zygote
from tests.integration.model.messages import Answer, Body
from tests.integration.model.workflows import GPU, LINUX, workflows

Asked = tuple[Life, Body]

LIVES = 2
OPEN_RUNS = 12
"""As many as are open, no more are made."""
ROUNDS = 60
"""In which everybody finishes."""
SEEDS = st.integers(0, 2**32)
KILLS = st.sampled_from([0, 0, 0, 1, 1, 2])
REPOSITORIES = ("local/one", "local/two")
SHA = "a" * 40


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


class Model(RuleBasedStateMachine):
    arena: ClassVar[Arena]

    def __init__(self) -> None:
        super().__init__()
        self._tally = self.arena.tally
        self._database = self.arena.database
        self._database.clear()
        self._lives: list[Life] = []
        self._dead: list[str] = []
        """Coordinators that were killed and whose lease has not lapsed."""
        self._lapsed: set[str] = set()
        """Living ones whose lease has."""
        self._agents = [Agent(f"agent-{number}", GPU if number == 3 else LINUX) for number in range(4)]
        self._ledger = Ledger()
        self._seen = EMPTY
        self._numbers = itertools.count(1)
        self._bodies: dict[str, bytes] = {}
        """Delivery → body."""
        self._max_attempts = 5
        self._choices = random.Random(0)
        self._told: deque[messages.Tell] = deque(maxlen=60)
        self._refused: list[messages.Tell] = []
        """Since the last look."""
        self._finishing = False
        self._broken = False
        self._trace: deque[str] = deque(maxlen=400)
        self._kinds: list[tuple[Callable[[], list[Asked]], int]] = [
            (self._a_delivery, 4),
            (self._working_events, 3),
            (self._a_hello, 2),
            (self._a_dispatch, 7),
            (self._frames, 20),
            (self._an_old_frame, 4),
            (self._a_cut, 1),
            (self._a_silence, 2),
            (self._a_return, 1),
            (self._a_goodbye, 1),
            (self._a_crash, 1),
            (self._asking_stops, 2),
            (self._a_cancellation, 2),
            (self._a_renewal, 1),
            (self._a_sweep, 4),
        ]

    # ── rules ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(size=st.integers(1, 4), seed=SEEDS, kills=KILLS)
    def small_volley(self, size: int, seed: int, kills: int) -> None:
        self._step(random.Random(seed), size, kills)

    @rule(size=st.integers(5, 10), seed=SEEDS, kills=KILLS)
    def volley(self, size: int, seed: int, kills: int) -> None:
        self._step(random.Random(seed), size, kills)

    @rule(size=st.integers(10, 25), seed=SEEDS, kills=KILLS)
    def large_volley(self, size: int, seed: int, kills: int) -> None:
        self._step(random.Random(seed), size, kills)

    @initialize(some=st.lists(workflows(), min_size=2, max_size=4))
    def first_pushes(self, some: list[LockWorkflow]) -> None:
        for workflow in some:
            self._push(workflow, REPOSITORIES[0])

    @rule(workflow=workflows(), repo=st.sampled_from(REPOSITORIES))
    def another_push(self, workflow: LockWorkflow, repo: str) -> None:
        if len([run for run in self._seen.runs.values() if not run.ended]) < OPEN_RUNS:
            self._push(workflow, repo)

    @rule(what=st.sampled_from(DEADLINES))
    def a_deadline_passes(self, what: str) -> None:
        self._pass(what)

    @rule()
    def dead_coordinators_lapse(self) -> None:
        self._lapse(self._dead)
        self._dead = []

    @rule(which=st.integers(0, LIVES - 1))
    def a_living_coordinator_lapses(self, which: int) -> None:
        """It was stopped for too long, or could not reach the database."""
        if which < len(self._lives):
            self._lapse([self._lives[which].instance])
            self._lapsed.add(self._lives[which].instance)

    def teardown(self) -> None:
        try:
            if not self._broken:
                self._finish()
        finally:
            for life in self._lives:
                life.close()
        self._tally.examples += 1
        self._tally.runs += len(self._seen.runs)

    def _push(self, workflow: LockWorkflow, repo: str) -> None:
        """The delivery goes out with the next volleys."""
        event = Event(EventType.PUSH, branch="main", sha=SHA, repo=repo)
        self._bodies[f"delivery-{next(self._numbers)}"] = msgspec.json.encode(messages.Delivered(workflow, event))

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _step(self, choices: random.Random, size: int, kills: int) -> None:
        self._choices = choices
        self._live()
        asked = self._hellos()
        kinds, weights = [kind for kind, _ in self._kinds], [weight for _, weight in self._kinds]
        while len(asked) < size:
            asked += choices.choices(kinds, weights)[0]()
        self._fire(asked, kills)

    def _live(self) -> None:
        begun = []
        while len(self._lives) < LIVES:
            life = self.arena.zygote.begin(self._database.url, max_attempts=self._max_attempts)
            self._lives.append(life)
            begun.append(life)
        for life in begun:
            life.wait_ready()

    def _fire(self, asked: Sequence[Asked], kills: int) -> None:
        self._ledger.passes = [0, self._ledger.passes[0]]
        began = time.monotonic()
        for life, body in asked:
            self._ask(life, body)
        self._tally.volleys += 1
        for life in self._choices.sample(self._lives, kills):
            self._kill(life, self.arena.volley_s * self._choices.random() * self._choices.random())
        was_quick = self._await()
        for agent in self._agents:
            agent.calling = False
        if was_quick and not kills:
            self.arena.volley_s += 0.1 * (time.monotonic() - began - self.arena.volley_s)
        self._check()

    def _ask(self, life: Life, body: Body) -> None:
        self._trace.append(f"{life.instance} ← {body}")
        self._tally.operations += 1
        match body:
            case messages.Tell(frame=frame):
                self._ledger.told_of(frame)
                self._told.append(body)
            case messages.Dispatch():
                self._ledger.passes[0] += 1
            case messages.CancelRun(run_id=run_id):
                self._ledger.cancelled.add(run_id)
        life.ask(body)

    def _kill(self, life: Life, delay_s: float) -> None:
        time.sleep(delay_s)
        answered = life.kill()
        self._trace.append(f"{life.instance} killed after {delay_s * 1000:.1f} ms, {len(life.asked)} requests open")
        self._tally.operations += 1
        self._tally.kills += 1
        self._tally.kills_inside += bool(life.asked)
        self._lives.remove(life)
        if life.instance not in self._lapsed:
            self._dead.append(life.instance)
        self._lapsed.discard(life.instance)
        for body, answer in answered:
            self._hear(life, body, answer)
        for agent in self._agents:
            if agent.life is life:
                agent.cut()

    def _await(self) -> bool:
        """Until nothing is owed. What waits for a lease or a session that is lost gets it back, or is cut off: False
        then."""
        was_quick = True
        for life in self._lives:
            look_at = time.monotonic() + self._regain_after_s(life)
            give_up_at = time.monotonic() + PATIENCE_S
            while life.asked:
                for body, answer in life.answers(until=look_at):
                    self._hear(life, body, answer)
                if life.asked and time.monotonic() >= look_at:
                    if time.monotonic() > give_up_at:
                        self._must_hold([f"{life.instance} owes {list(life.asked.values())}"])
                    was_quick = False
                    self._regain(life)
                    look_at = time.monotonic() + self._regain_after_s(life)
        return was_quick

    def _regain_after_s(self, life: Life) -> float:
        doubtful = life.instance in self._lapsed or any(agent.silent for agent in self._agents if agent.life is life)
        return 0.03 if doubtful else 0.3

    def _regain(self, life: Life) -> None:
        if life.instance in self._lapsed:
            self._renew(life)
        for session_id in sorted({body.session_id for body in life.asked.values() if isinstance(body, messages.Tell)}):
            if self._choices.random() < 0.5:
                self._ask(life, messages.BeHeard(session_id))
                continue
            self._ask(life, messages.Cut(session_id))
            for agent in self._agents:
                if agent.session == session_id:
                    agent.cut()

    def _renew(self, life: Life) -> None:
        self._ask(life, messages.RenewLease())
        self._lapsed.discard(life.instance)

    def _check(self) -> None:
        now = self._database.look()
        self._must_hold(laws.broken(now, self._seen, self._ledger))
        self._must_hold([problem for tell in self._refused for problem in laws.wrongly_refused(now, tell)])
        self._refused.clear()
        running = Counter(job_id for agent in self._agents for job_id, _ in agent.runs())
        self._must_hold(
            [f"{number} attempts of {job_id} run at once" for job_id, number in running.items() if number > 1]
        )
        self._seen = now

    def _must_hold(self, problems: Sequence[str]) -> None:
        if problems:
            self._broken = True
            trace = "\n".join(self._trace)
            raise AssertionError("\n".join(problems) + f"\n\nwhat was done, the last thing last:\n{trace}")

    # ── answers ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _hear(self, life: Life, body: Body, answer: Answer) -> None:
        self._trace.append(f"{life.instance} → {answer} to {body}")
        self._tally.answers[f"{_kind(body)} → {type(answer).__name__}"] += 1
        if isinstance(answer, messages.Broken):
            self._must_hold([f"{body} broke:\n{answer.trace}"])
        match body, answer:
            case messages.TakeIn(delivery_id), messages.TakenIn():
                self._ledger.deliveries.add(delivery_id)
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
            case messages.BeHeard(session_id), _:
                for agent in self._at(life, session_id):
                    agent.silent = False
                    if isinstance(answer, messages.Unable):
                        agent.cut()

    def _heard_about(self, life: Life, tell: messages.Tell, answer: Answer) -> None:
        if isinstance(answer, messages.Taken):
            self._ledger.acknowledged(tell.frame)
        for agent in self._at(life, tell.session_id):
            is_news = agent.name == tell.agent_id and agent.answered(tell.frame, answer)
            if is_news and isinstance(answer, messages.Refused):
                self._refused.append(tell)

    def _sent(self, life: Life, dispatched: messages.Dispatched) -> None:
        for sent in dispatched.sent:
            ref: Ref = sent.job_id, sent.attempt
            self._must_hold([f"{ref} was sent twice"] if ref in self._ledger.dispatched else [])
            self._ledger.dispatched.add(ref)
            for agent in self._at(life, sent.session_id):
                agent.dispatched(sent, accepts=self._finishing or self._choices.random() < 0.9)

    def _named(self, name: str) -> Agent:
        return next(agent for agent in self._agents if agent.name == name)

    def _at(self, life: Life, session_id: str) -> list[Agent]:
        """The agent whose socket is there under this session, if there is one."""
        return [agent for agent in self._agents if agent.life is life and agent.session == session_id]

    # ── what may be asked ─────────────────────────────────────────────────────────────────────────────────────────────

    def _any_life(self) -> Life:
        return self._choices.choice(self._lives)

    def _any_agent(self, *, connected: bool) -> Agent | None:
        some = [agent for agent in self._agents if (agent.life is not None) is connected]
        return self._choices.choice(some) if some else None

    def _a_delivery(self) -> list[Asked]:
        """One that is not acknowledged, or one again that is."""
        waiting = [one for one in self._bodies if one not in self._ledger.deliveries]
        known = list(self._bodies)
        if not known:
            return []
        delivery_id = self._choices.choice(waiting if waiting and self._choices.random() < 0.9 else known)
        return [(self._any_life(), messages.TakeIn(delivery_id, self._bodies[delivery_id]))]

    def _working_events(self) -> list[Asked]:
        return [(self._any_life(), messages.WorkEvents())]

    def _hellos(self) -> list[Asked]:
        """Agents without a socket do not rest."""
        return [
            (self._any_life(), agent.hello())
            for agent in self._agents
            if agent.life is None and self._choices.random() < 0.5
        ]

    def _a_hello(self) -> list[Asked]:
        """Also of an agent that has a socket: it has noticed before the coordinator that it is broken."""
        agent = self._any_agent(connected=self._choices.random() < 0.5)
        if agent is None or agent.calling:
            return []
        return [(self._any_life(), agent.hello())]

    def _a_dispatch(self) -> list[Asked]:
        life = self._any_life()
        here = [agent.session for agent in self._agents if agent.life is life]
        free = {session: self._choices.randint(1, 3) for session in here if self._choices.random() < 0.8}
        gone = tuple(session for session in free if self._choices.random() < 0.1)
        return [(life, messages.Dispatch(free, gone))] if free else []

    def _frames(self) -> list[Asked]:
        """An agent goes on with its work and tells of it: in order or not, all of it or not, once or twice."""
        agent = self._any_agent(connected=True)
        if agent is None or agent.life is None:
            return []
        for work in list(agent.works.values()):
            if self._choices.random() < 0.7:
                agent.go_on(work, self._choices.choice(ENDS), self._seen_steps(work.ref))
        telling = [frame for frame in agent.unanswered if self._choices.random() < 0.8][:5]
        telling += [frame for frame in telling if self._choices.random() < 0.15]
        if self._choices.random() < 0.3:
            self._choices.shuffle(telling)
        return [(agent.life, messages.Tell(agent.session, agent.name, frame)) for frame in telling]

    def _an_old_frame(self) -> list[Asked]:
        """Something that was told before, by its agent again, or as if by another."""
        agent = self._any_agent(connected=True)
        if agent is None or agent.life is None or not self._told:
            return []
        old = self._choices.choice(self._told)
        return [(agent.life, messages.Tell(agent.session, agent.name, old.frame))]

    def _a_cut(self) -> list[Asked]:
        agent = self._any_agent(connected=True)
        if agent is None or agent.life is None:
            return []
        life = agent.life
        agent.cut()
        return [(life, messages.Cut(agent.session))]

    def _a_silence(self) -> list[Asked]:
        agent = self._any_agent(connected=True)
        if agent is None or agent.life is None:
            return []
        agent.silent = True
        return [(agent.life, messages.FallSilent(agent.session))]

    def _a_return(self) -> list[Asked]:
        return [(agent.life, messages.BeHeard(agent.session)) for agent in self._agents if agent.life and agent.silent]

    def _a_goodbye(self) -> list[Asked]:
        agent = self._any_agent(connected=True)
        if agent is None or agent.life is None or agent.works or agent.unanswered:
            return []
        life = agent.life
        agent.cut()
        return [(life, messages.Leave(agent.session))]

    def _a_crash(self) -> list[Asked]:
        agent = self._choices.choice(self._agents)
        self._trace.append(f"{agent} crashes")
        agent.crash()
        return []

    def _asking_stops(self) -> list[Asked]:
        life = self._any_life()
        here = tuple(agent.session for agent in self._agents if agent.life is life)
        return [(life, messages.AskStops(here))] if here else []

    def _a_cancellation(self) -> list[Asked]:
        runs = [run.run_id for run in self._seen.runs.values() if not run.ended]
        if not runs:
            return []
        return [(self._any_life(), messages.CancelRun(self._choices.choice(runs), self._choices.random() < 0.3))]

    def _a_renewal(self) -> list[Asked]:
        """A coordinator whose lease has lapsed takes it anew, and hears its agents."""
        asked: list[Asked] = []
        for life in self._lives:
            if life.instance in self._lapsed:
                self._lapsed.discard(life.instance)
                asked.append((life, messages.RenewLease()))
                asked += [(life, messages.BeHeard(agent.session)) for agent in self._agents if agent.life is life]
        return asked

    def _a_sweep(self) -> list[Asked]:
        return [self._sweep(self._any_life(), self._choices.choice(sorted(SERVICES)))]

    def _sweep(self, life: Life, service: str) -> Asked:
        return life, messages.Sweep(service)

    def _seen_steps(self, ref: Ref) -> int:
        job = self._seen.jobs.get(ref[0])
        return job.steps if job is not None else 1

    # ── time ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _pass(self, what: str) -> None:
        self._trace.append(f"time passes: {what}")
        self._tally.operations += 1
        touched = self._database.expire(what)
        if what in ("waits", "runs", "jobs"):
            self._ledger.too_long |= touched
        if what == "recoveries":
            for agent in self._agents:
                if agent.name in touched:
                    agent.outlive_silence()

    def _lapse(self, instances: Sequence[str]) -> None:
        if instances:
            self._trace.append(f"leases lapse: {instances}")
            self._tally.operations += 1
            self._database.lapse(instances)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(self) -> None:
        """Everybody does all that they can, and time passes, until nothing is left to do."""
        self._finishing = True
        for number in range(ROUNDS):
            self._choices = random.Random(number)
            self._live()
            self._fire(self._everything(), kills=number % 2 if number < 8 else 0)
            if self._seen.quiet and self._ledger.deliveries >= self._bodies.keys():
                break
            self._lapse(self._dead)
            self._dead = []
            everything = number % 4 == 3
            for what in DEADLINES if everything else ("delays", "event claims"):
                self._pass(what)
            if everything:
                self._fire([self._sweep(self._lives[0], service) for service in sorted(SERVICES)], kills=0)
        self._must_hold(list(laws.unfinished(self._seen)))

    def _everything(self) -> list[Asked]:
        asked = self._a_renewal()
        for delivery_id, body in self._bodies.items():
            if delivery_id not in self._ledger.deliveries:
                asked.append((self._any_life(), messages.TakeIn(delivery_id, body)))
        for agent in self._agents:
            if agent.life is None:
                asked.append((self._any_life(), agent.hello()))
                continue
            if agent.silent:
                asked.append((agent.life, messages.BeHeard(agent.session)))
            for work in list(agent.works.values()):
                agent.go_on(work, "success", self._seen_steps(work.ref))
            asked += [(agent.life, messages.Tell(agent.session, agent.name, frame)) for frame in agent.unanswered]
        seen = self._seen
        for life in self._lives:
            here = tuple(agent.session for agent in self._agents if agent.life is life)
            if len(seen.runs) < len(self._bodies):
                asked.append((life, messages.WorkEvents()))
            if here and any(job.status is JobStatus.CANCELLING for job in seen.jobs.values()):
                asked.append((life, messages.AskStops(here)))
            if here and any(row.session_id is None for row in seen.rows.values()):
                asked.append((life, messages.Dispatch(dict.fromkeys(here, 8))))
        return asked


def _kind(body: Body) -> str:
    return type(body.frame).__name__ if isinstance(body, messages.Tell) else type(body).__name__
