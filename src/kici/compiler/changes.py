"""What is different between two lock files, value by value.

Both are compared as the documents that they are. Entries of a list that have a name are told apart by it, so that a job
put in front of the others is one change and not many. Hashes and line numbers say nothing to a reader and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from kici.compiler.errors import CompileError
from kici.engine import lockfile
from kici.engine.errors import LockFileError
from kici.engine.lockfile import LockFile

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Change(Struct, frozen=True, omit_defaults=True):
    """`before` or `after` is unset where there was or is no such value."""

    path: tuple[str, ...]
    """From the document down: `("workflows", "ci", "jobs", "build", "timeoutMs")`."""
    before: Any = msgspec.UNSET
    after: Any = msgspec.UNSET

    def __str__(self) -> str:
        where = " › ".join(self.path)
        if self.before is msgspec.UNSET:
            return f"+ {where}: {_brief(self.after)}"
        if self.after is msgspec.UNSET:
            return f"- {where}: {_brief(self.before)}"
        return f"~ {where}: {_brief(self.before)} → {_brief(self.after)}"


def committed(root: Path) -> LockFile | None:
    """The lock file at `root`, None if there is none. Raises `CompileError` for one that cannot be read."""
    try:
        data = (root / lockfile.PATH).read_bytes()
    except FileNotFoundError:
        return None
    try:
        return lockfile.decode(data)
    except LockFileError as error:
        raise CompileError(f"{error}; `kici compile` writes it anew") from error


def between(before: LockFile | None, after: LockFile) -> list[Change]:
    """In the order of the paths. No lock file before is an empty one."""
    return list(_compare((), _document(before) if before else {"files": {}, "workflows": []}, _document(after)))


def _document(lock: LockFile) -> Any:
    """What the file holds, without hashes and places in the source. They are taken out where they stand: a job, a file
    or a variable may have such a name too."""
    document = msgspec.json.decode(lockfile.encode(lock))
    del document["contentHash"], document["schemaVersion"]
    for workflow in document["workflows"]:
        del workflow["contentHash"], workflow["source"]
        for job in workflow["jobs"]:
            for located in (job, *job["steps"]):
                located.pop("location", None)
    return document


def _compare(path: tuple[str, ...], old: Any, new: Any) -> Iterator[Change]:
    before, after = _by_name(old), _by_name(new)
    if before is None or after is None:
        if old != new:
            yield Change(path, old, new)
        return
    for name in sorted(before.keys() | after.keys()):
        below = (*path, name)
        if name in before and name in after:
            yield from _compare(below, before[name], after[name])
        else:
            yield Change(below, before.get(name, msgspec.UNSET), after.get(name, msgspec.UNSET))
    shared = [name for name in before if name in after]
    if isinstance(new, list) and shared != [name for name in after if name in before]:
        yield Change((*path, "order"), list(before), list(after))


def _by_name(value: Any) -> Mapping[str, Any] | None:
    """A mapping's entries, or those of a list whose entries all have names of their own; else None."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, list) or not all(isinstance(one, dict) and "name" in one for one in value):
        return None
    named = {one["name"]: {key: field for key, field in one.items() if key != "name"} for one in value}
    return named if len(named) == len(value) else None


def _brief(value: Any) -> str:
    """A value in one line: jobs and steps of what is new or gone as a whole are counted, not listed."""
    for parts in ("jobs", "steps") if isinstance(value, dict) else ():
        if isinstance(value.get(parts), list):
            count = len(value[parts])
            return f"{count} {parts if count != 1 else parts.removesuffix('s')}"
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        value = f"{value[:12]}…"
    return msgspec.json.encode(value).decode()
