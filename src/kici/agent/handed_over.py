"""What steps may hand over: the limits of secret outputs, events and caches, the same on an agent and here."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from kici.wire.runner import MIN_SECRET_BYTES

MAX_SECRETS = 20
"""Of a job."""
MAX_SECRET_BYTES = 65_536
MAX_EVENTS = 100
"""Of one attempt of a job."""
MAX_PAYLOAD_BYTES = 65_536
MAX_NAME_CHARS = 200
"""Of an event."""
MAX_KEY_CHARS = 512
MAX_PREFIXES = 20
_SECRET = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


class HandedOver:
    """Counts for one job. Each method returns why something is refused, which never says a value; empty = it is not."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._events = 0

    def refuse_secret(self, name: str, value: str) -> str:
        what = f"secret output {name[:100]!r} was not kept"
        if not _SECRET.fullmatch(name):
            return f"{what}: its name is to be 1 to 100 letters, digits and _, the first no digit"
        size = len(value.encode(errors="replace"))
        if size < MIN_SECRET_BYTES:
            return f"{what}: it has {size} bytes, and with fewer than {MIN_SECRET_BYTES} it cannot be hidden in logs"
        if size > MAX_SECRET_BYTES:
            return f"{what}: it has {size:,} bytes; the limit is {MAX_SECRET_BYTES:,}"
        if len(self._secrets | {name}) > MAX_SECRETS:
            return f"{what}: a job has up to {MAX_SECRETS} of them"
        self._secrets.add(name)
        return ""

    def refuse_event(self, name: str, payload: Any) -> str:
        what = f"event {name[:MAX_NAME_CHARS]!r} was not emitted"
        if not name.strip() or len(name) > MAX_NAME_CHARS:
            return f"{what}: its name is to have 1 to {MAX_NAME_CHARS} characters"
        try:
            size = len(msgspec.json.encode(payload))
        except (TypeError, ValueError) as error:
            return f"{what}: its payload is not JSON: {error}"
        if size > MAX_PAYLOAD_BYTES:
            return (
                f"{what}: its payload has {size:,} bytes; the limit is {MAX_PAYLOAD_BYTES:,}: upload an artifact, and"
                " emit its name"
            )
        if self._events == MAX_EVENTS:
            return f"{what}: an attempt of a job emits up to {MAX_EVENTS}"
        self._events += 1
        return ""


def refuse_key(key: str, prefixes: tuple[str, ...] = ()) -> str:
    """Why a cache cannot have this key, or not be looked for by these prefixes."""
    if len(prefixes) > MAX_PREFIXES:
        return f"the cache {key[:100]!r} is looked for by {len(prefixes)} prefixes; the limit is {MAX_PREFIXES}"
    for one in (key, *prefixes):
        if not one.strip() or len(one) > MAX_KEY_CHARS or not one.isprintable():
            return f"{one[:100]!r} cannot be the key of a cache: write one line of 1 to {MAX_KEY_CHARS} characters"
    return ""
