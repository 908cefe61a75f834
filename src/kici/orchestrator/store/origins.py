"""Where a job comes from: the run and the event behind an attempt that asks for something over HTTP."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from kici.engine.events import Event, Trust
from kici.orchestrator.store.database import Db


class Origin(Struct, frozen=True):
    run_id: str
    job_id: str
    job_name: str
    workflow_name: str
    repository: str
    provider: str
    routing_key: str
    clone_url: str
    ref: str
    sha: str
    event: Event
    """Without its payload."""

    @property
    def trusted(self) -> bool:
        return self.event.trust is Trust.TRUSTED

    @property
    def pull_request(self) -> int | None:
        """Of a run that is not trusted."""
        return None if self.trusted else self.event.pr_number


async def find(db: Db, job_id: str, attempt: int) -> Origin | None:
    """None if the attempt is over."""
    return _origin(await db.fetchrow(_FIND, job_id, attempt))


async def hold(db: Db, job_id: str, attempt: int) -> Origin | None:
    """The same, and until the transaction ends no other attempt begins and this one does not end: the fence of what an
    attempt writes."""
    return _origin(await db.fetchrow(f"{_FIND} for share of j", job_id, attempt))


_FIND = """
  select r.run_id, j.job_id, j.job_name, r.workflow_name, r.repo_identifier as repository, r.provider,
         coalesce(r.routing_key, '') as routing_key, r.clone_url, r.ref, r.sha, r.event - 'payload' as event
    from execution_jobs j join execution_runs r on r.run_id = j.run_id
   where j.job_id = $1 and j.attempt = $2 and j.status in ('running', 'recovering', 'cancelling')
"""


def _origin(row: Any) -> Origin | None:
    return None if row is None else msgspec.convert(dict(row), Origin)
