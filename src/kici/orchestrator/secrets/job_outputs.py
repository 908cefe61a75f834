"""What a job hands over to the jobs that need it and nobody else may read: sealed by the key ring."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from kici.orchestrator.errors import AttemptOver, Invalid, TooLarge
from kici.orchestrator.secrets.key_ring import KeyRing
from kici.orchestrator.store import origins, secret_outputs
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.secret_outputs import Sealed

MAX_PER_JOB: Final = 20
MAX_BYTES: Final = 65_536
_ORG: Final = "__job_outputs__"
"""Under which they are sealed, so that none passes for a secret of another kind."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


class SecretOutputs:
    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    def __repr__(self) -> str:
        return "SecretOutputs()"

    async def put(self, db: Db, job_id: str, attempt: int, name: str, value: bytes) -> None:
        """Keep or replace an output of this attempt, in the caller's transaction.

        Raises `Invalid` (name, not UTF-8, too many), `TooLarge` or `AttemptOver`, none of which says the value.
        """
        _check(name, value)
        if await origins.hold(db, job_id, attempt) is None:
            raise AttemptOver(f"secret output {name!r} was not kept: attempt {attempt} of this job is over")
        sealed = self._keys.seal(_ORG, job_id, name, value)
        kept = await secret_outputs.put(
            db, attempt, Sealed(job_id, name, sealed, self._keys.current), limit=MAX_PER_JOB
        )
        if not kept:
            raise Invalid(f"secret output {name!r} was not kept: a job has up to {MAX_PER_JOB} of them")

    async def of_needed(self, db: Db, job_id: str) -> dict[str, str]:
        """Name → value, of all jobs that this one needs; of two with one name that of the later job in `needs`.

        Raises `SecretUnreadable`.
        """
        return self._opened(await secret_outputs.of_needed(db, job_id))

    def _opened(self, rows: Sequence[Sealed]) -> dict[str, str]:
        return {
            row.name: self._keys.open(_ORG, row.job_id, row.name, row.sealed, row.key_version).decode() for row in rows
        }


def _check(name: str, value: bytes) -> None:
    if not _NAME.fullmatch(name):
        raise Invalid(
            f"{name[:100]!r} cannot be the name of a secret output: write 1 to 100 letters, digits and _, the first no"
            " digit"
        )
    if len(value) > MAX_BYTES:
        raise TooLarge(f"secret output {name!r} has {len(value):,} bytes; the limit is {MAX_BYTES:,}")
    try:
        value.decode()
    except UnicodeDecodeError:
        # Not chained: the error would carry the value.
        raise Invalid(f"secret output {name!r} is not UTF-8 text: encode it, as base64 for example") from None
