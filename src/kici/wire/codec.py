"""msgpack both ways, with one exception for everything that cannot be read."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from kici.errors import KiciError

MAX_MESSAGE_BYTES = 262_144
"""Of one WebSocket message. What is larger travels over HTTP."""

T = TypeVar("T")


class UnreadableMessage(KiciError):
    code = "unreadable_message"
    status = 400


class Codec(Generic[T]):
    """Encodes structs, decodes the tagged union `messages`. Unknown fields are ignored, unknown tags are refused."""

    def __init__(self, messages: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(messages)

    def encode(self, message: T) -> bytes:
        return self._encoder.encode(message)

    def decode(self, data: bytes | bytearray | memoryview) -> T:
        try:
            return self._decoder.decode(data)
        except msgspec.DecodeError as error:
            raise UnreadableMessage(f"a message could not be read: {error}") from error
