"""WebSocket close codes of the agents' socket. After `AUTH_FAILED` and `REFUSED` an agent does not come back."""

from __future__ import annotations

from enum import IntEnum


class CloseCode(IntEnum):
    NORMAL = 1000
    GOING_AWAY = 1001
    HELLO_TIMEOUT = 4002
    INVALID_MESSAGE = 4003
    HEARTBEAT_TIMEOUT = 4004
    PROTOCOL_VERSION = 4005
    INTERNAL_ERROR = 4006
    AUTH_FAILED = 4010
    REFUSED = 4011
    """A hello that no retry can mend: foreign labels, an agent id that belongs to another token."""
    ACK_TIMEOUT = 4031
    SUPERSEDED = 4032
    """A newer socket of the same agent took over."""
