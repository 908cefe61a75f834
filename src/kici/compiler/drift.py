"""How a committed lock file differs from what a compile gives, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from kici.engine import lockfile
from kici.engine.errors import LockFileError
from kici.engine.lockfile import LockFile, LockJob, LockWorkflow


def differences(root: Path, lock: LockFile, data: bytes) -> list[str]:
    """Empty if the lock file at `root` is this one, byte for byte apart from CRLF."""
    try:
        committed = (root / lockfile.PATH).read_bytes().replace(b"\r\n", b"\n")
    except FileNotFoundError:
        return [f"{lockfile.PATH} is missing"]
    if committed == data:
        return []
    try:
        before = lockfile.decode(committed)
    except LockFileError as error:
        return [str(error)]
    found = _named("file", _below_kici(before.files), _below_kici(lock.files), lambda old, new: "")
    found += _named("workflow", _by_name(before.workflows), _by_name(lock.workflows), _workflow)
    return found or [f"{lockfile.PATH} is written differently"]


def _named(kind: str, old: Mapping[str, Any], new: Mapping[str, Any], tell: Callable[[Any, Any], str]) -> list[str]:
    found = []
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            found.append(f"{kind} {name!r} is gone")
        elif name not in old:
            found.append(f"{kind} {name!r} is new")
        elif old[name] != new[name]:
            what = tell(old[name], new[name])
            found.append(f"{kind} {name!r} has changed" + (f" ({what})" if what else ""))
    return found


def _workflow(old: LockWorkflow, new: LockWorkflow) -> str:
    jobs = _named("job", _by_name(old.jobs), _by_name(new.jobs), _job)
    if not jobs and [job.name for job in old.jobs] != [job.name for job in new.jobs]:
        jobs = ["the order of its jobs"]
    return "; ".join([*_fields(old, new, without={"jobs", "content_hash", "source"}), *jobs])


def _job(old: LockJob, new: LockJob) -> str:
    return ", ".join(_fields(old, new, without={"location"}))


def _fields(old: Struct, new: Struct, *, without: set[str]) -> list[str]:
    return [
        field.encode_name
        for field in msgspec.structs.fields(old)
        if field.name not in without and getattr(old, field.name) != getattr(new, field.name)
    ]


def _by_name(several: tuple[Any, ...]) -> dict[str, Any]:
    return {one.name: one for one in several}


def _below_kici(files: Mapping[str, str]) -> dict[str, str]:
    return {f".kici/{path}": digest for path, digest in files.items()}
