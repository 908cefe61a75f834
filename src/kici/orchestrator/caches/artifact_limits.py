"""How large artifacts may be, how many a run may have, and how many bytes those of a repository may take.

They are never removed early, so what is over a limit is refused. Of a repository's bytes its pull requests have a
share, and each of them a part of that: nobody's fork leaves no room for what the repository's own branches make.
"""

from __future__ import annotations

from msgspec import Struct

from kici.orchestrator.caches.uploads import Room
from kici.orchestrator.errors import Conflict
from kici.orchestrator.store import artifact_quota
from kici.orchestrator.store.artifact_quota import Bytes
from kici.orchestrator.store.caches import Owner
from kici.orchestrator.store.database import Db

NOTHING = Bytes(0, 0, 0)


class Limits(Struct, frozen=True):
    max_bytes: int = 5 * 1024**3
    """Of one artifact."""
    per_run: int = 500
    quota_bytes: int = 100 * 1024**3
    """Of all of a repository, as it is reached through one source."""

    @property
    def of_pull_requests(self) -> int:
        """Bytes of all pull requests that are not trusted."""
        return self.quota_bytes // 2

    @property
    def of_one_pull_request(self) -> int:
        return self.quota_bytes // 4


async def check_count(db: Db, run_id: str, name: str, limits: Limits) -> None:
    """Raises `Conflict` if the run may not have one more."""
    if await artifact_quota.count(db, run_id) >= limits.per_run:
        raise Conflict(
            f"artifact {name!r} was refused: the run has {limits.per_run:,} artifacts, and may have no more"
            " (KICI_ARTIFACTS_PER_RUN): put several files into one"
        )


async def left(db: Db, owner: Owner, pull_request: int | None, limits: Limits, *, sending: bool) -> Room:
    """Bytes that are free, also of what is being sent if so asked. They stay free until the transaction ends."""
    await artifact_quota.lock(db, owner)
    kept = await artifact_quota.kept(db, owner, pull_request)
    coming = await artifact_quota.sending(db, owner, pull_request) if sending else NOTHING
    whose = f"the artifacts of {owner.repository}"
    rooms = [_room(whose, limits.quota_bytes, kept.total, coming.total)]
    if pull_request is not None:
        whose += " that pull requests have made"
        rooms.append(_room(whose, limits.of_pull_requests, kept.untrusted, coming.untrusted))
        whose = f"the artifacts of pull request {pull_request} of {owner.repository}"
        rooms.append(_room(whose, limits.of_one_pull_request, kept.pull_request, coming.pull_request))
    return min(rooms, key=lambda room: room.bytes)


def _room(whose: str, most: int, kept: int, coming: int) -> Room:
    more = f", {coming:,} more are being sent or not yet removed" if coming else ""
    return Room(
        most - kept - coming,
        f"{whose} may take {most:,} bytes, and take {kept:,}{more}: room comes when older ones expire; operators raise"
        " KICI_ARTIFACT_QUOTA_BYTES or shorten KICI_ARTIFACT_TTL_MS",
    )
