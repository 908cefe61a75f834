"""Where things lie in the object store. Names that users chose are escaped; ids are ours."""

from __future__ import annotations

import hashlib
import string

_PLAIN = frozenset((string.ascii_letters + string.digits + "._-").encode())
_MAX_NAME = 160


def escape(name: str) -> str:
    """A name as part of one segment: other bytes than letters, digits, `.`, `_` and `-` become `=XX`.

    A long name is cut and ends with a hash of the whole, so that two names never share an escape.
    """
    escaped = "".join(chr(byte) if byte in _PLAIN else f"={byte:02X}" for byte in name.encode())
    if len(escaped) <= _MAX_NAME:
        return escaped
    return f"{escaped[: _MAX_NAME - 34]}=-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def step_log(run_id: str, job_name: str, attempt: int, step_index: int, upload: int) -> str:
    """The compacted log of a step. `upload` numbers the tries, from 1: two tries never write the same object."""
    folder = f"executions/{run_id}/job-{escape(job_name)}"
    if attempt > 1:
        folder += f"/attempt-{attempt}"
    suffix = f".upload-{upload}" if upload > 1 else ""
    return f"{folder}/step-{step_index}{suffix}.log.zst"


def cache(upload_id: str) -> str:
    """Of an entry's parts; the id is made for each upload."""
    return f"caches/{upload_id}"


def artifact(run_id: str, name: str, upload_id: str) -> str:
    """Of an artifact's parts; the id is made for each upload."""
    return f"artifacts/{run_id}/{escape(name)}-{upload_id}"


def part(key: str, number: int) -> str:
    return f"{key}/{number}"
