"""What an agent says about a job, and the answers to it."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from kici.wire.agent import JobAccepted, JobRejected, JobStatusChanged, StepStatusChanged

StatusFrame: TypeAlias = JobAccepted | JobRejected | StepStatusChanged | JobStatusChanged


class SessionRef(Struct, frozen=True):
    """Whose frame it is."""

    id: str
    agent_id: str
    skew_ms: int = 0
    """Agent's clock minus ours."""


class Item(Struct, frozen=True):
    number: int
    """Order of arrival on this coordinator."""
    session: SessionRef
    frame: StatusFrame

    @property
    def job_id(self) -> str:
        return self.frame.job_id


class Taken(Struct, frozen=True, tag=True):
    """Committed, or told before, or of no consequence any more."""


class Kind(StrEnum):
    """Of refusals, for those who count them."""

    ATTEMPT = "attempt"
    """An older attempt, or one that was never given."""
    SESSION = "session"
    """Another agent has the job."""
    ENDED = "ended"
    """The job or the step has ended otherwise."""
    UNKNOWN = "unknown"
    """There is no such job."""
    INVALID = "invalid"
    POISON = "poison"
    """It could not be stored."""


class Refused(Struct, frozen=True, tag=True):
    """Thrown away for good."""

    reason: str
    kind: Kind = Kind.INVALID


class Superseded(Struct, frozen=True, tag=True):
    """Its session is over: a newer socket of the agent brings the frame again."""


class Busy(Struct, frozen=True, tag=True):
    """Not now: a row is locked elsewhere, the session is about to be regained, or an earlier frame of the job waits."""


Answer: TypeAlias = Taken | Refused | Superseded
Outcome: TypeAlias = Answer | Busy
