"""What a job knows about its run: sent by the orchestrator to the agent, and by the agent to the runner."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from kici.engine.events import Event


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

    def __repr__(self) -> str:
        return f"JobContext(run_id={self.run_id!r}, name={self.name!r}, attempt={self.attempt})"
