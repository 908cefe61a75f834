"""The state machine that hypothesis plays: volleys and kills, pushes, and the passing of time, in any order."""

from __future__ import annotations

import random
from typing import ClassVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from kici.engine.events import Event, EventType
from kici.engine.lockfile import LockWorkflow
from kici.engine.rerun import Mode
from kici.orchestrator.pipeline.rerun import PROVIDER, RerunRequest
from tests.integration.model import messages, moves
from tests.integration.model.database import DEADLINES
from tests.integration.model.finish import finish
from tests.integration.model.play import ENDS_JOBS, LIVES, Arena, Play
from tests.integration.model.workflows import workflows

OPEN_RUNS = 12
"""As many as are open, nobody pushes."""
REPOSITORIES = ("local/one", "local/two")

seeds = st.integers(0, 2**32)
kills = st.sampled_from([0, 0, 1, 1, 1, 2])


class Model(RuleBasedStateMachine):
    arena: ClassVar[Arena]

    def __init__(self) -> None:
        super().__init__()
        self._play = Play(self.arena)

    @initialize(some=st.lists(workflows(), min_size=4, max_size=8))
    def first_pushes(self, some: list[LockWorkflow]) -> None:
        for workflow in some:
            self._push(workflow, REPOSITORIES[0])

    @rule(workflow=workflows(), repo=st.sampled_from(REPOSITORIES))
    def another_push(self, workflow: LockWorkflow, repo: str) -> None:
        if sum(not run.ended for run in self._play.seen.runs.values()) < OPEN_RUNS:
            self._push(workflow, repo)

    @rule(mode=st.sampled_from(["all", "failed", "job"]), seed=seeds)
    def a_rerun(self, mode: Mode, seed: int) -> None:
        """Somebody asks for an ended run to be run again, perhaps twice with the same id."""
        play = self._play
        ended = sorted(run.run_id for run in play.seen.runs.values() if run.ended)
        if ended:
            run_id = ended[seed % len(ended)]
            names = sorted(job.job_name for job in play.seen.jobs_of(run_id)) if mode == "job" else [""]
            asked = RerunRequest(run_id, f"request-{seed % 3}", mode, names[seed % len(names)], False, "user:model")
            delivery_id = f"{PROVIDER}:{run_id}:{asked.request_id}"
            again = messages.TakeIn(delivery_id, PROVIDER, msgspec.json.encode(asked))
            play.deliveries.setdefault(delivery_id, again)

    @rule(size=st.integers(1, 4), seed=seeds, kills=kills)
    def small_volley(self, size: int, seed: int, kills: int) -> None:
        self._volley(size, seed, kills)

    @rule(size=st.integers(5, 10), seed=seeds, kills=kills)
    def volley(self, size: int, seed: int, kills: int) -> None:
        self._volley(size, seed, kills)

    @rule(size=st.integers(10, 25), seed=seeds, kills=kills)
    def large_volley(self, size: int, seed: int, kills: int) -> None:
        self._volley(size, seed, kills)

    @rule(what=st.sampled_from(DEADLINES), seed=seeds)
    def a_deadline_passes(self, what: str, seed: int) -> None:
        """Of few, where the job is then over; of many or all, where that makes work."""
        self._play.let_pass(what, tenths=1 if what in ENDS_JOBS else 3 + seed % 8, salt=str(seed))

    @rule()
    def dead_coordinators_lapse(self) -> None:
        self._play.forget_the_dead()

    @rule(which=st.integers(0, LIVES - 1))
    def a_living_coordinator_lapses(self, which: int) -> None:
        """It was stopped for too long, or could not reach the database."""
        if which < len(self._play.lives):
            instance = self._play.lives[which].instance
            self._play.lapse([instance])
            self._play.lapsed.add(instance)

    def teardown(self) -> None:
        play = self._play
        try:
            if not play.broken:
                finish(play)
        finally:
            play.close()
        play.tally.examples += 1
        play.tally.runs += len(play.seen.runs)
        play.tally.endings.update(str(job.status) for job in play.seen.jobs.values())

    def _push(self, workflow: LockWorkflow, repo: str) -> None:
        """The delivery goes out with the next volleys."""
        number = len(self._play.deliveries) + 1
        event = Event(EventType.PUSH, branch="main", sha=f"{number:040x}", repo=repo)
        body = msgspec.json.encode(messages.Delivered(workflow, event))
        self._play.deliveries[f"push-{number}"] = messages.TakeIn(f"push-{number}", "internal", body)

    def _volley(self, size: int, seed: int, kills: int) -> None:
        play = self._play
        play.choices = random.Random(seed)
        play.live()
        if play.choices.random() < 0.3:
            play.forget_the_dead()
        play.fire(moves.some(play, size), kills)
