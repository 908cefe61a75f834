"""The code that runs is the code that was locked: checked before the first import."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from kici.agent.errors import DiskFull, PreparationFailed, is_disk_full
from kici.engine import kici_files, lockfile
from kici.engine.errors import LockFileError

LOCK = lockfile.PATH.removeprefix(".kici/")


class KiciNotVerified(PreparationFailed):
    code = "kici_not_verified"


class Locked(Struct, frozen=True):
    """The job as the lock file describes it."""

    workflow: lockfile.LockWorkflow
    job: lockfile.LockJob


def verify(files: Mapping[str, bytes], lock_sha256: str) -> lockfile.LockFile:
    """The lock file among `files` (path below `.kici/` → bytes), if it is the one that was matched and lists just them.

    Raises `KiciNotVerified` with one sentence for each file that is missing, different or unlisted.
    """
    data = files.get(LOCK)
    if data is None:
        raise KiciNotVerified(f"the commit has no {lockfile.PATH}: run `kici compile` and commit it")
    found = hashlib.sha256(data).hexdigest()
    if found != lock_sha256:
        raise KiciNotVerified(
            f"{lockfile.PATH} is not the file that this run was made from (SHA-256 {found}, expected {lock_sha256})"
        )
    try:
        lock = lockfile.decode(data)
    except LockFileError as error:
        raise KiciNotVerified(str(error)) from error
    actual = {path: kici_files.digest(content) for path, content in files.items() if path != LOCK}
    problems = kici_files.compare(lock.files, actual)
    if problems:
        raise KiciNotVerified("\n".join(problems))
    return lock


def find(lock: lockfile.LockFile, workflow: str, job: str, carried: lockfile.LockJob | None = None) -> Locked:
    """`carried`: the definition that came with the job, of one that the lock file does not have, or of which it says
    that functions give some of its options. Of all others the lock file's counts."""
    for candidate in lock.workflows:
        if candidate.name == workflow:
            locked = next((one for one in candidate.jobs if one.name == job), None)
            if locked is not None and not (locked.dynamic and carried):
                return Locked(candidate, locked)
            if carried is not None and carried.name == job:
                return Locked(candidate, carried)
    raise KiciNotVerified(f"{lockfile.PATH} has no job {job!r} in a workflow {workflow!r}")


def write(files: Mapping[str, bytes], directory: Path) -> None:
    """Put verified files where the runner imports them from; only the agent may write there."""
    try:
        for path, content in files.items():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        for made in directory.rglob("*"):
            # Whatever the agent's umask: the slot's user reads it.
            made.chmod(0o755 if made.is_dir() else 0o644)
    except OSError as error:
        if is_disk_full(error):
            raise DiskFull(directory) from error
        raise KiciNotVerified(f".kici/ could not be written: {error}") from error
