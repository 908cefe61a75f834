"""Events that are kept as files, as `kici fixture` writes them: objects with the fields of an `Event` in camelCase."""

from __future__ import annotations

import msgspec

from kici.engine.errors import EventFileError
from kici.engine.events import Event
from kici.nearest import nearest

DIRECTORY = ".kici/events"


def decode(data: bytes, name: str) -> Event:
    """Read one strictly; what it leaves out is empty. Raises `EventFileError` with a sentence that names the file."""
    try:
        given = msgspec.json.decode(data)
        if not isinstance(given, dict):
            raise EventFileError(f'{name} is no JSON object: write {{"type": "push", "branch": "main"}}')
        known = [field.encode_name for field in msgspec.structs.fields(Event)]
        for key in given:
            if key not in known:
                raise EventFileError(f"{name}: an event has no {key!r}{nearest(key, known)}")
        return msgspec.convert(given, Event)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EventFileError(f"{name} is no event: {error}") from error
