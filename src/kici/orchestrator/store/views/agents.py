"""Agents that have a session, as the API shows them."""

from __future__ import annotations

from kici.orchestrator.store.database import Db
from kici.wire import api


async def listed(db: Db, limit: int = 1000) -> list[api.Agent]:
    """By name. A session whose agent is silent, or whose coordinator is gone, shows as `recovering`."""
    rows = await db.fetch(
        """
        select s.agent_id, s.labels, s.slots, s.version, s.coordinator, s.opened_at as connected_at, s.facts,
               coalesce(w.jobs, '{}') as running_jobs,
               case when s.lost_at is not null or c.lease_expires_at is null or c.lease_expires_at < now()
                    then 'recovering'
                    when s.draining then 'draining'
                    when s.facts ? 'not_taking' then 'full'
                    when w.jobs is not null then 'busy'
                    else 'idle' end as status
          from agent_sessions s
          left join coordinators c on c.instance = s.coordinator
          left join lateral (
            select array_agg(j.job_id::text order by j.job_id) as jobs from execution_jobs j
             where j.session_id = s.id and j.status in ('running', 'recovering', 'cancelling')
          ) w on true
         where s.closed_at is null
         order by s.agent_id, s.opened_at desc limit $1
        """,
        limit,
    )
    return [api.Agent(**row) for row in rows]
