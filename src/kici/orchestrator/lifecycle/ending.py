"""How a job is to end."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from kici.engine.lifecycle import JobEvent


class End(Struct, frozen=True):
    job_id: str
    event: JobEvent
    error: str = ""
    outputs: dict[str, Any] | None = None
    init_failure: dict[str, Any] | None = None
    reported: bool = False
    """By the agent that ran it."""
