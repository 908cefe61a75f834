"""A bound on the bytes of all bodies that are being taken in, in memory or on disk."""

from __future__ import annotations

from types import TracebackType

from kici.orchestrator.intake.errors import Busy


class InflightBytes:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def reserve(self) -> Reservation:
        return Reservation(self)


class Reservation:
    """What one request holds; given back at the end of the `with` block."""

    __slots__ = ("_held", "_inflight")

    def __init__(self, inflight: InflightBytes) -> None:
        self._inflight = inflight
        self._held = 0

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inflight.used -= self._held
        self._held = 0

    def grow(self, size: int) -> None:
        """Raises `Busy`. Bytes count when they are here, not when they are announced: announcing costs nothing."""
        if self._inflight.used + size > self._inflight.limit:
            raise Busy("too many webhooks are being taken in at this moment: send it again")
        self._inflight.used += size
        self._held += size
