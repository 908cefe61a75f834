"""What a step's Python code may change of the runner's own process, put back before the next step runs.

Its commands are processes of their own; only code that calls `os.chdir`, `signal.signal` and the like itself does this.
"""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from typing import Any

_LIMITS = tuple(value for name, value in vars(resource).items() if name.startswith("RLIMIT_"))
_SIGNALS = tuple(signal.valid_signals())


class OwnState:
    """As it is now: directory, umask, resource limits, handlers of signals. In the main thread."""

    def __init__(self) -> None:
        self._directory = os.getcwd()
        self._umask = _umask()
        self._limits = {kind: resource.getrlimit(kind) for kind in _LIMITS}
        self._handlers: dict[int, Any] = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore(self) -> None:
        """A limit that was lowered for good stays lowered, and a directory that is gone is not gone to."""
        with suppress(OSError):
            os.chdir(self._directory)
        os.umask(self._umask)
        for kind, before in self._limits.items():
            soft, hard = resource.getrlimit(kind)
            if (soft, hard) != before:
                with suppress(OSError, ValueError):
                    resource.setrlimit(kind, before)
                    continue
                with suppress(OSError, ValueError):
                    resource.setrlimit(kind, (_smaller(before[0], hard), hard))
        for number, handler in self._handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                with suppress(OSError, ValueError):
                    signal.signal(number, handler)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _smaller(wanted: int, hard: int) -> int:
    if hard == resource.RLIM_INFINITY:
        return wanted
    return hard if wanted == resource.RLIM_INFINITY else min(wanted, hard)
