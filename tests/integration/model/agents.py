"""What an agent does, so far as anybody else can see it: the rules of `kici.agent`, without processes and clocks.

An agent keeps every frame until it is answered and sends it again after it has come back. It begins user code once its
acceptance is acknowledged, kills it when it has heard nothing for too long (where the dispatch says so), and lists on
every hello what it has not yet reported the end of.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from msgspec import Struct

from kici.wire.agent import AttemptRef, JobAccepted, JobRejected, JobStatusChanged, StepStatusChanged
from tests.integration.model import messages
from tests.integration.model.lives import Life
from tests.integration.model.messages import Answer, Sent

Frame = JobAccepted | JobRejected | StepStatusChanged | JobStatusChanged
Ref = tuple[str, int]
"""job id, attempt"""

NOON_MS = 1_700_000_000_000
ENDS = ("success", "success", "success", "failed", "failed", "skipped", "drift_dropped", "early")
"""How user code may end; `early` = before it began."""


class Work(Struct):
    """One attempt that was sent to the agent."""

    ref: Ref
    run_id: str
    kills: bool
    begun: bool = False
    """The acceptance is acknowledged: user code runs."""
    stopped: bool = False
    """It is to be cancelled."""
    told: int = 0
    """How much of its story: 0 nothing, 1 that it runs, 2 its end."""
    done: bool = False
    """User code has ended, however."""


class Agent:
    def __init__(self, name: str, labels: tuple[str, ...]) -> None:
        self.name = name
        self.labels = labels
        self.boots = itertools.count(1)
        self.boot = f"boot-{next(self.boots)}"
        self.life: Life | None = None
        """Where its socket is."""
        self.session = ""
        self.calling = False
        """It has said hello in this volley."""
        self.silent = False
        """Its coordinator believes it silent."""
        self.works: dict[Ref, Work] = {}
        self.unanswered: list[Frame] = []
        """In the order in which they were put."""

    def __repr__(self) -> str:
        where = self.life.instance if self.life else "nowhere"
        return f"{self.name}@{where}"

    def runs(self) -> Iterable[Ref]:
        """Attempts whose user code runs at this moment."""
        return [ref for ref, work in self.works.items() if work.begun and not work.done]

    def hello(self) -> messages.Hello:
        self.cut()
        self.calling = True
        refs = tuple(AttemptRef(*ref) for ref in self.works)
        return messages.Hello(self.name, self.boot, self.labels, refs)

    # ── what it is told ───────────────────────────────────────────────────────────────────────────────────────────────

    def welcomed(self, life: Life, adopted: messages.Adopted) -> None:
        self.life, self.session = life, adopted.session_id
        for ref in adopted.forget:
            self._drop((ref.job_id, ref.attempt))

    def dispatched(self, sent: Sent, *, accepts: bool) -> None:
        ref = sent.job_id, sent.attempt
        if any(job_id == sent.job_id and attempt >= sent.attempt for job_id, attempt in self.works):
            return
        for older in [other for other in self.works if other[0] == sent.job_id]:
            self._drop(older)
        if not accepts:
            self.unanswered.append(JobRejected(*ref, "busy"))
            return
        self.works[ref] = Work(ref, sent.run_id, sent.kills)
        self.unanswered.append(JobAccepted(*ref))

    def stop(self, stop: messages.Stop) -> None:
        work = self.works.get((stop.job_id, stop.attempt))
        if work is not None:
            work.stopped = True

    def answered(self, frame: Frame, answer: Answer) -> bool:
        """False: it knew this answer already, or has dropped the attempt."""
        if isinstance(answer, messages.Superseded):
            self.cut()
            return False
        if frame not in self.unanswered:
            return False
        self.unanswered.remove(frame)
        ref = frame.job_id, frame.attempt
        match frame:
            case JobAccepted() if isinstance(answer, messages.Taken):
                self.works[ref].begun = True
            case JobAccepted():
                self._drop(ref)
            case JobStatusChanged(status=status) if status != "cancelling":
                self._drop(ref)
        return True

    # ── what befalls it ───────────────────────────────────────────────────────────────────────────────────────────────

    def cut(self) -> None:
        """Its socket is gone."""
        self.life, self.silent = None, False

    def crash(self) -> None:
        """It starts anew and knows nothing."""
        self.cut()
        self.boot = f"boot-{next(self.boots)}"
        self.works.clear()
        self.unanswered.clear()

    def outlive_silence(self) -> None:
        """By its own clock it has heard nothing for too long: it kills what may start elsewhere, and says nothing."""
        self.cut()
        for ref in [ref for ref, work in self.works.items() if work.kills and not work.done]:
            self._drop(ref)

    # ── what it does by itself ────────────────────────────────────────────────────────────────────────────────────────

    def go_on(self, work: Work, ending: str, steps: int) -> None:
        """Put the next frames of its story."""
        if not work.begun or work.done:
            return
        job_id, attempt = work.ref
        if work.stopped:
            self._put_end(work, "cancelled", steps)
        elif ending == "early" and work.told == 0:
            self._put(
                _step(job_id, attempt, -1, "failed"), JobStatusChanged(job_id, attempt, "failed", NOON_MS + 9_000)
            )
            work.done = True
        elif work.told == 0:
            self._put(
                _step(job_id, attempt, -1, "running"),
                _step(job_id, attempt, -1, "success"),
                _step(job_id, attempt, 0, "running"),
            )
            work.told = 1
        else:
            self._put_end(work, "failed" if ending == "early" else ending, steps)

    def _put_end(self, work: Work, ending: str, steps: int) -> None:
        job_id, attempt = work.ref
        if ending == "cancelled":
            self._put(JobStatusChanged(job_id, attempt, "cancelling", NOON_MS + 5_000))
        else:
            for index in range(steps - 1):
                self._put(_step(job_id, attempt, index, "success"), _step(job_id, attempt, index + 1, "running"))
        self._put(_step(job_id, attempt, steps - 1, "success" if ending in ("skipped", "drift_dropped") else ending))
        self._put(JobStatusChanged(job_id, attempt, ending, NOON_MS + 9_000, outputs={"step": ending}))
        work.told, work.done = 2, True

    def _put(self, *frames: Frame) -> None:
        self.unanswered += frames

    def _drop(self, ref: Ref) -> None:
        """The attempt is over, or somebody else's: kill it and say nothing more about it."""
        self.works.pop(ref, None)
        self.unanswered = [frame for frame in self.unanswered if (frame.job_id, frame.attempt) != ref]


def lies(job_id: str, attempt: int) -> list[Frame]:
    return [
        JobStatusChanged(job_id, attempt, "failed", NOON_MS, error="this is not true"),
        JobStatusChanged(job_id, attempt, "cancelling", NOON_MS),
        _step(job_id, attempt, 0, "failed"),
        _step(job_id, attempt, 0, "running"),
    ]


def _step(job_id: str, attempt: int, index: int, status: str) -> StepStatusChanged:
    at_ms = NOON_MS + 1_000 * (index + 2)
    if status == "running":
        return StepStatusChanged(job_id, attempt, index, f"step {index}", status, at_ms)
    return StepStatusChanged(
        job_id,
        attempt,
        index,
        f"step {index}",
        status,
        at_ms + 500,
        started_at_ms=at_ms,
        exit_code=0,
        log_chunks=index % 2,
    )
