"""Jobs that take the place of one that stood for them. The caller holds their run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from kici.engine.evaluation import STEP, init_name
from kici.engine.events import Event
from kici.engine.expansion import Known, StandIn
from kici.engine.plan import PlannedNeed, Seed
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.runs import Home


class Facts(Struct, frozen=True):
    """All that an expansion is made from."""

    home: Home
    event: Event
    stand_in: StandIn
    result: Any
    """What the evaluation's step gave; None: nothing."""
    init_id: str
    """Of the evaluation's job."""
    known: list[Known]
    ids: dict[str, str]
    """Name → id of all jobs of the run."""


async def facts(db: Db, job_id: str) -> Facts:
    """Raises `msgspec.ValidationError` if another version has written what it stands for."""
    row = await db.fetchrow(
        """
        select j.run_id, coalesce(j.routing_key, '') as routing_key,
               coalesce(r.concurrency_scope, '') as concurrency_scope, r.event, j.job_name, j.position, j.seed
          from execution_jobs j join execution_runs r on r.run_id = j.run_id
         where j.job_id = $1
        """,
        job_id,
    )
    assert row is not None
    rows = await db.fetch(
        """
        select j.job_id, j.job_name, j.base_job_name, coalesce(j.generated_by, '') as generated_by,
               (select coalesce(array_agg(n.upstream_name), '{}') from execution_job_needs n where n.job_id = j.job_id)
                 as needs
          from execution_jobs j where j.run_id = $1 order by j.position, j.job_id
        """,
        row["run_id"],
    )
    needs = await db.fetch(
        """
        select n.upstream_name, n.run_on from execution_job_needs n
          join execution_jobs u on u.job_id = n.upstream_job_id
         where n.job_id = $1 order by u.position
        """,
        job_id,
    )
    ids = {one["job_name"]: one["job_id"] for one in rows}
    init_id = ids[init_name(row["job_name"])]
    return Facts(
        home=Home(row["run_id"], row["routing_key"], row["concurrency_scope"]),
        event=msgspec.convert(row["event"], Event),
        stand_in=StandIn(
            row["job_name"],
            row["position"],
            tuple(PlannedNeed(one["upstream_name"], frozenset(one["run_on"])) for one in needs),
            msgspec.convert(row["seed"], Seed),
        ),
        result=await db.fetchval("select outputs -> $2 from execution_jobs where job_id = $1", init_id, STEP),
        init_id=init_id,
        known=[Known(one["job_name"], one["base_job_name"], tuple(one["needs"]), one["generated_by"]) for one in rows],
        ids=ids,
    )


async def replace(db: Db, job_id: str, jobs: Sequence[tuple[str, str]]) -> list[str]:
    """These (id, name), which are there, take the place of a job: whoever needed it needs each of them, unless it does
    already. The job is gone. Returns who needed it."""
    dependants = await db.fetch(
        """
        with needing as (
          delete from execution_job_needs where upstream_job_id = $1 returning run_id, job_id, job_name, run_on
        ), put as (
          insert into execution_job_needs (run_id, job_id, upstream_job_id, job_name, upstream_name, run_on)
          select d.run_id, d.job_id, n.job_id, d.job_name, n.name, d.run_on
            from needing d cross join unnest($2::uuid[], $3::text[]) as n (job_id, name)
          on conflict do nothing
        )
        select job_id from needing order by job_id
        """,
        job_id,
        [one for one, _ in jobs],
        [name for _, name in jobs],
    )
    await db.execute("delete from execution_job_needs where job_id = $1", job_id)
    await db.execute("delete from execution_steps where job_id = $1", job_id)
    await db.execute("delete from execution_jobs where job_id = $1", job_id)
    return [row["job_id"] for row in dependants]


async def forget_result(db: Db, init_id: str) -> None:
    """What the evaluation gave is in the jobs that it became, or in the sentence why it became none."""
    await db.execute("update execution_jobs set outputs = null where job_id = $1", init_id)
