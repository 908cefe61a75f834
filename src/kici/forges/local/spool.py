"""Deliveries that wait on disk, in the repository, until the orchestrator has taken them.

A delivery is one file: its name ends in the delivery id, its content is the body. Names sort by the time of the push.
The directory belongs to whoever may push, so its files need no signature.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_NAME = re.compile(r"\A\d{20}-(?P<id>[0-9a-f-]{36})\.json\Z")


class Waiting(NamedTuple):
    delivery_id: str
    file: Path


def write(spool: Path, body: bytes) -> Waiting:
    """Durable when it returns: the file and its name are on disk."""
    spool.mkdir(mode=0o700, parents=True, exist_ok=True)
    delivery_id = str(uuid.uuid4())
    file = spool / f"{time.time_ns():020d}-{delivery_id}.json"
    unfinished = file.with_suffix(".part")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        out.write(body)
        out.flush()
        os.fsync(out.fileno())
    unfinished.rename(file)
    directory = os.open(spool, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return Waiting(delivery_id, file)


def waiting(spool: Path) -> Iterator[Waiting]:
    """Oldest first. A spool that does not exist is empty."""
    try:
        names = sorted(os.listdir(spool))
    except FileNotFoundError:
        return
    for name in names:
        if found := _NAME.match(name):
            yield Waiting(found["id"], spool / name)


def remove(delivery: Waiting) -> None:
    """Also if somebody else has removed it: the hook and the orchestrator may both have delivered it."""
    delivery.file.unlink(missing_ok=True)


def set_aside(delivery: Waiting) -> Path:
    """Keep a delivery that will never be taken, where nobody tries it again."""
    aside = delivery.file.with_suffix(".refused")
    delivery.file.rename(aside)
    return aside
