"""Concurrency groups in use, as the API shows them."""

from __future__ import annotations

from msgspec import Struct

from kici.orchestrator.store.database import Db
from kici.orchestrator.store.views.conditions import Conditions
from kici.wire import api


class Filter(Struct, frozen=True):
    group: str | None = None
    repository: str | None = None


async def listed(db: Db, wanted: Filter, limit: int) -> list[api.ConcurrencyGroup]:
    """Groups in the order of their scope and name, with up to `limit` holders and waiters together, each in the order
    of arrival."""
    made = Conditions()
    made.add("g.group_key = {}", wanted.group)
    made.add("r.repo_identifier = {}", wanted.repository)
    rows = await db.fetch(
        f"""
        select g.routing_key as scope, g.group_key, g.status, g.run_id, g.job_id, j.job_name, r.workflow_name,
               r.repo_identifier as repository, r.ref, coalesce(j.status, r.status) as state, g.max_active as max,
               coalesce(g.activated_at, g.created_at) as since
          from concurrency_groups g
          join execution_runs r on r.run_id = g.run_id
          left join execution_jobs j on j.job_id = g.job_id
         {made.where or "where true"} and g.status in ('active', 'queued')
         order by g.routing_key, g.group_key, g.status, g.arrival limit {made.param(limit)}
        """,  # noqa: S608 - constants
        *made.values,
    )
    groups: dict[tuple[str, str], api.ConcurrencyGroup] = {}
    for row in rows:
        values = dict(row)
        key = values.pop("scope"), values.pop("group_key")
        holds = values.pop("status") == "active"
        found = groups.setdefault(key, api.ConcurrencyGroup(*key, [], []))
        (found.holders if holds else found.waiters).append(api.ConcurrencySlot(**values))
    return list(groups.values())
