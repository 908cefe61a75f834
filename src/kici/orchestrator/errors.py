"""What can go wrong in the orchestrator, each with a stable code, the HTTP status and a sentence that helps."""

from __future__ import annotations

from kici.errors import KiciError


class OrchestratorError(KiciError):
    code = "orchestrator_error"


class LeaseLost(OrchestratorError):
    """Somebody else leads now. The service that meets it stops acting; the next leader goes on."""

    code = "lease_lost"
    status = 409

    def __init__(self, name: str) -> None:
        super().__init__(f"the lease {name!r} has passed to another coordinator")


class NotFound(OrchestratorError):
    code = "not_found"
    status = 404


class Gone(OrchestratorError):
    """It was there once."""

    code = "gone"
    status = 410


class Conflict(OrchestratorError):
    code = "conflict"
    status = 409


class AttemptOver(OrchestratorError):
    """An attempt of a job asks for something after its end, or after another one has begun."""

    code = "attempt_over"
    status = 409


class Unauthorized(OrchestratorError):
    code = "unauthorized"
    status = 401


class Forbidden(OrchestratorError):
    code = "forbidden"
    status = 403


class Invalid(OrchestratorError):
    code = "invalid_request"
    status = 400


class TooLarge(OrchestratorError):
    code = "too_large"
    status = 413


class Unavailable(OrchestratorError):
    """The database, the disk or another part that is needed is away: nothing was accepted, try again."""

    code = "unavailable"
    status = 503
