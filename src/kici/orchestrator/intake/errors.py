"""Why a delivery is refused. Each reason has a status of its own; the signature's and the payload's are the forge's."""

from __future__ import annotations

from kici.orchestrator.errors import OrchestratorError, TooLarge, Unavailable


class UnknownSource(OrchestratorError):
    """Also of a source that is switched off, so that a stranger learns nothing from the difference."""

    code = "source_unknown"
    status = 404


class Misconfigured(OrchestratorError):
    code = "source_misconfigured"
    status = 500


class WrongMethod(OrchestratorError):
    code = "method_not_allowed"
    status = 405


class BodyTooSlow(OrchestratorError):
    code = "body_too_slow"
    status = 408


class BodyTooLarge(TooLarge):
    code = "body_too_large"


class CompressedBody(OrchestratorError):
    code = "body_compressed"
    status = 415


class RateLimited(OrchestratorError):
    code = "rate_limited"
    status = 429

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Busy(Unavailable):
    """As many bytes as are allowed are being taken in already."""

    code = "busy"
