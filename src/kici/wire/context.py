"""What a job knows about its run: sent by the orchestrator to the agent, and by the agent to the runner."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from kici.engine.events import Event
from kici.engine.lockfile import LockJob


class NeededJob(Struct, frozen=True, omit_defaults=True):
    """One job (one combination of a matrix) that this job needs, after its end."""

    name: str
    """With the matrix suffix."""
    job: str
    """Base name."""
    status: str
    matrix: dict[str, str] = {}
    outputs: dict[str, Any] = {}
    """Step name → what the step returned. A job that is one function has its value under its own name."""
    generated_by: str = ""
    """Name of the generator that made it."""


class AgentFacts(Struct, frozen=True, omit_defaults=True):
    name: str
    labels: tuple[str, ...]
    os: str = ""
    arch: str = ""


class JobContext(Struct, frozen=True, omit_defaults=True):
    run_id: str
    job_id: str
    attempt: int
    """From 1."""
    workflow: str
    job: str
    """Base name, as in the lock file."""
    name: str
    """With the matrix suffix."""
    event: Event
    matrix: dict[str, str] = {}
    needs: tuple[NeededJob, ...] = ()
    env: dict[str, str] = {}
    """Templates expanded."""
    environment: str = ""
    secrets: dict[str, str] = {}
    run_url: str = ""
    is_local: bool = False
    untouched: tuple[str, ...] = ()
    """`home`, `checkout`: belongs to the developer who runs it, so `ctx.cache` leaves it alone."""
    fanout_index: int = 0
    """Place among the combinations of the job's matrix, from 0."""
    fanout_total: int = 1
    agent: AgentFacts | None = None
    """None on `kici run local`."""
    generated_by: str = ""
    """Name of the generator that made the job."""
    definition: LockJob | None = None
    """Of a job that the lock file does not have as it is: what the evaluation of its dynamic options, or of its
    generator, gave. None = the lock file's."""

    def __repr__(self) -> str:
        return f"JobContext(run_id={self.run_id!r}, name={self.name!r}, attempt={self.attempt})"
