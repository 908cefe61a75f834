"""Whether an attempt may do what it asks for: what its workflow says, whatever its agent thinks of it."""

from __future__ import annotations

from kici.engine import permissions
from kici.engine.lockfile import Level
from kici.orchestrator.errors import Forbidden
from kici.orchestrator.identity.access import JobPrincipal

READ, WRITE = Level.READ, Level.WRITE


def require(job: JobPrincipal, kind: str, level: Level) -> None:
    """Raises `Forbidden` with the sentence that names the workflow and what it would have to say."""
    if refused := permissions.refusal(job.workflow, job.permissions, kind, level):
        raise Forbidden(refused)
