"""What must be true afterwards, from the database, the journals and the API. Each violation is a sentence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence

import asyncpg
from asyncpg import Connection, Record

from tests.chaos import journal
from tests.chaos.cluster import Cluster
from tests.chaos.journal import Stretch
from tests.chaos.work import WORKFLOWS, log_of

READERS = 8


def stretches(cluster: Cluster) -> list[Stretch]:
    now = time.monotonic()
    return [one for name, path in cluster.journals.items() for one in journal.read(name, path, cluster.deaths, now)]


async def violations(cluster: Cluster, deliveries: Collection[str], jobs: int, ran: Sequence[Stretch]) -> list[str]:
    db = await asyncpg.connect(cluster.postgres.url, timeout=10)
    try:
        rows = await db.fetch(
            "select job_id::text, run_id::text, job_name, status, attempt, agent_id, error_message from execution_jobs"
        )
        found = [sentence async for sentence in _of_database(db, deliveries, rows, jobs)]
    finally:
        await db.close()
    found += journal.violations(ran)
    found += _unplayed(rows, ran)
    found += await _of_logs(cluster, [row for row in rows if row["status"] == "success"])
    return found


async def _of_database(
    db: Connection[Record], deliveries: Collection[str], rows: Sequence[Record], jobs: int
) -> AsyncIterator[str]:
    if len(rows) != jobs:
        yield f"{len(rows)} jobs were made, not {jobs}"
    for row in rows:
        if row["status"] != "success":
            yield f"job {row['job_name']} ({row['job_id']}) is {row['status']}: {row['error_message']}"
    for row in await db.fetch("select run_id, status, failure_reason from execution_runs where status <> 'success'"):
        yield f"run {row['run_id']} is {row['status']}: {row['failure_reason']}"
    runs = {
        row["delivery"]: row["runs"]
        for row in await db.fetch(
            """
            select split_part(e.delivery_id, ':', 3) as delivery, count(r.run_id) as runs
              from event_log e left join execution_runs r on r.event_id = e.id
             group by e.id
            """
        )
    }
    for delivery in deliveries:
        if runs.get(delivery) != len(WORKFLOWS):
            yield f"delivery {delivery} was taken and has {runs.get(delivery)} runs, not {len(WORKFLOWS)}"
    for delivery in runs.keys() - set(deliveries):
        yield f"delivery {delivery} is stored, and nobody was told that it was taken"
    for row in await db.fetch("select id, job_name, attempt from dispatch_queue"):
        yield f"job {row['job_name']} ({row['id']}) is still in the queue, at attempt {row['attempt']}"
    for row in await db.fetch(
        """
        select j.job_name, j.job_id, j.attempt, s.attempt as of_attempt, s.status
          from execution_steps s join execution_jobs j using (job_id)
         where s.step_index >= 0
           and (s.attempt = j.attempt and s.status <> 'success' or s.status in ('pending', 'running'))
        """
    ):
        yield (
            f"a step of attempt {row['of_attempt']} of job {row['job_name']} ({row['job_id']}, at attempt"
            f" {row['attempt']}) is {row['status']}"
        )


def _unplayed(rows: Sequence[Record], ran: Sequence[Stretch]) -> list[str]:
    """Successes of attempts whose user code no agent says it has finished."""
    finished = {(one.job_id, one.attempt, one.agent) for one in ran if one.how == "end"}
    return [
        f"job {row['job_name']} ({row['job_id']}) succeeded at attempt {row['attempt']} on {row['agent_id']}, whose"
        " journal does not have its end"
        for row in rows
        if row["status"] == "success" and (row["job_id"], row["attempt"], row["agent_id"]) not in finished
    ]


async def _of_logs(cluster: Cluster, rows: Sequence[Record]) -> list[str]:
    """Byte for byte, through the API of either coordinator."""
    waiting = list(rows)
    found: list[str] = []

    async def read() -> None:
        while waiting:
            row = waiting.pop()
            url = cluster.coordinators[len(waiting) % len(cluster.coordinators)].url
            answer = await cluster.http.get(
                f"{url}/api/v1/admin/runs/{row['run_id']}/jobs/{row['job_id']}/steps/0/logs", params={"limit": 2000}
            )
            answer.raise_for_status()
            page = answer.json()
            written = [line for chunk in log_of(row["job_id"], row["attempt"]) for line in chunk.lines]
            if page["lines"] != written or not page["complete"]:
                found.append(
                    f"the log of job {row['job_name']} ({row['job_id']}, attempt {row['attempt']}) has"
                    f" {len(page['lines'])} lines, complete: {page['complete']}; its agent wrote {len(written)}"
                )

    await asyncio.gather(*(read() for _ in range(READERS)))
    return found
