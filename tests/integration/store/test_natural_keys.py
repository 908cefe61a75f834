"""What happens twice is stored once, whatever the code above believes: a key of the database says so."""

from __future__ import annotations

import uuid

import asyncpg
import pytest
from asyncpg import Pool, Record

from kici.engine.concurrency import Policy
from kici.orchestrator.store import caches, concurrency, events, logs, outbox, secret_outputs
from kici.orchestrator.store.caches import NewEntry, Owner
from kici.orchestrator.store.concurrency import Arrival, Group
from kici.orchestrator.store.events import NewEvent
from kici.orchestrator.store.secret_outputs import Sealed
from tests.support.locks import job
from tests.support.runs import make_run

OWN = {
    "event_log": ("id",),
    "execution_runs": ("id", "run_id"),
    "execution_jobs": ("id",),
    "execution_steps": ("id",),
    "execution_job_needs": (),
    "dispatch_queue": (),
    "concurrency_groups": ("id", "arrival"),
    "outbox": ("id",),
    "artifacts": ("id",),
    "log_chunks": (),
    "secret_outputs": (),
    "caches": ("id",),
}
"""Table → columns that a second row would have of its own."""

KEYS = [
    ("event_log", "event_log_org_delivery_idx"),
    ("execution_runs", "execution_runs_event_workflow"),
    ("execution_jobs", "execution_jobs_job_id_key"),
    ("execution_steps", "idx_execution_steps_unique"),
    ("execution_job_needs", "execution_job_needs_pkey"),
    ("dispatch_queue", "dispatch_queue_pkey"),
    ("concurrency_groups", "concurrency_groups_holder"),
    ("outbox", "outbox_dedupe_key_key"),
    ("artifacts", "artifacts_run_name"),
    ("secret_outputs", "secret_outputs_pkey"),
    ("caches", "caches_entry"),
]


async def everything(pool: Pool[Record]) -> str:
    """A row in each table. Returns the run's id."""
    made = await make_run(pool, [job("build"), job("test", needs=["build"])])
    run_id, job_id = made.run_id, made["build"]
    await pool.execute("update execution_runs set event_id = gen_random_uuid()")
    async with pool.acquire() as db, db.transaction():
        event = NewEvent(
            id=events.new_id(),
            delivery_id="d",
            routing_key="r",
            event="push",
            action="",
            provider="p",
            headers={},
            repo="",
            ref="",
            content_type="",
            size=0,
            sha256="",
        )
        await events.insert_batch(db, [event])
        await concurrency.insert(
            db, [Arrival(str(uuid.uuid4()), Group("scope", "deploy"), run_id, job_id, Policy(), starts=True)]
        )
        await outbox.put(db, "kind", "target", dedupe_key="once")
        await db.execute(
            """
            insert into artifacts (run_id, job_id, attempt, name, object_key, size_bytes, sha256)
            values ($1, $2, 1, 'report', 'key', 1, '')
            """,
            run_id,
            job_id,
        )
        await secret_outputs.put(db, 1, Sealed(job_id, "TOKEN", "", 1), limit=20)
        entry = str(uuid.uuid4())
        await caches.publish(db, NewEntry(entry, Owner("r", "team/app"), "", "k", "o", run_id, job_id, 1, 1, ""))
    return run_id


async def insert_again(pool: Pool[Record], table: str) -> None:
    columns = await pool.fetch(
        """
        select attname from pg_attribute
         where attrelid = $1::text::regclass and attnum > 0 and not attisdropped and attidentity = ''
        """,
        table,
    )
    own = OWN[table]
    names = [row["attname"] for row in columns]
    values = ["gen_random_uuid()" if name in own else name for name in names]
    await pool.execute(f"insert into {table} ({', '.join(names)}) select {', '.join(values)} from {table}")


@pytest.mark.parametrize(("table", "key"), KEYS)
async def test_a_second_row_for_the_same_thing_is_refused(pool: Pool[Record], table: str, key: str) -> None:
    await everything(pool)
    with pytest.raises(asyncpg.UniqueViolationError) as caught:
        await insert_again(pool, table)
    assert caught.value.constraint_name == key


async def test_a_rerun_is_made_once_for_each_request(pool: Pool[Record]) -> None:
    run_id = await everything(pool)
    rerun = await make_run(pool, [job("build")])
    await pool.execute(
        "update execution_runs set parent_run_id = $1, rerun_request = 'once' where run_id = $2", run_id, rerun.run_id
    )
    another = await make_run(pool, [job("build")])
    with pytest.raises(asyncpg.UniqueViolationError, match="execution_runs_rerun"):
        await pool.execute(
            "update execution_runs set parent_run_id = $1, rerun_request = 'once' where run_id = $2",
            run_id,
            another.run_id,
        )


async def test_a_chunk_of_a_log_is_there_once(pool: Pool[Record]) -> None:
    async with pool.acquire() as db, db.transaction():
        hour = await db.fetchval("select date_trunc('hour', now())")
        await logs.create_partition(db, hour)
        await db.execute(
            """
            insert into log_chunks (log_hour, job_id, attempt, step_index, sequence, first_line, lines, bytes)
            values ($1, gen_random_uuid(), 1, 0, 0, 0, 1, '')
            """,
            hour,
        )
    with pytest.raises(asyncpg.UniqueViolationError):
        await insert_again(pool, "log_chunks")
