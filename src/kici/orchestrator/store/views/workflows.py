"""Registered workflows, as the API shows them."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from kici.orchestrator.store.database import Db
from kici.orchestrator.store.views.conditions import Conditions
from kici.wire import api


class Filter(Struct, frozen=True):
    repo: str | None = None
    trigger_type: str | None = None
    not_since: datetime | None = None
    """Last pushed to before this."""

    def conditions(self) -> Conditions:
        made = Conditions()
        made.add("w.repo_identifier = {}", self.repo)
        made.add("w.trigger_types @> array[{}::text]", self.trigger_type)
        made.add("w.updated_at < {}", self.not_since)
        return made


async def listed(db: Db, wanted: Filter, limit: int, offset: int) -> list[api.Registration]:
    """By repository and name."""
    made = wanted.conditions()
    where = made.where
    rows = await db.fetch(
        f"""
        select w.repo_identifier, w.workflow_name, w.trigger_types, w.commit_sha, w.source_file, w.disabled,
               w.updated_at, w.provider_context ->> 'defaultBranch' as default_branch
          from workflow_registrations w {where}
         order by w.repo_identifier, w.workflow_name, w.id limit {made.param(limit)} offset {made.param(offset)}
        """,  # noqa: S608 - constants
        *made.values,
    )
    return [api.Registration(**row) for row in rows]


async def count(db: Db, wanted: Filter) -> int:
    made = wanted.conditions()
    return int(
        await db.fetchval(
            f"select count(*) from workflow_registrations w {made.where}",  # noqa: S608 - constants
            *made.values,
        )
    )
