"""The code that runs is the code that was locked: digests of the files under `.kici/`, and what differs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def digest(data: bytes) -> str:
    """SHA-256 in hex. Text is newline-normalised first (CRLF and CR become LF), a file with NUL bytes is taken raw."""
    if b"\0" not in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return hashlib.sha256(data).hexdigest()


def compare(listed: Mapping[str, str], actual: Mapping[str, str]) -> list[str]:
    """What keeps the files from being those of the lock, one sentence each, sorted. Empty = they are.

    Both map a path below `.kici/` to its digest; neither holds the lock file itself.
    """
    problems = []
    for path in sorted(listed.keys() | actual.keys()):
        if path not in actual:
            problems.append(f".kici/{path} is in the lock file but missing: run `kici compile` and commit it")
        elif path not in listed:
            problems.append(f".kici/{path} is not in the lock file: run `kici compile` and commit the lock file")
        elif listed[path] != actual[path]:
            problems.append(f".kici/{path} differs from the lock file: run `kici compile` and commit both")
    return problems
