"""What the statements about caches and secret outputs cost beside a hundred thousand rows of others."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.store import caches, origins, secret_outputs
from kici.orchestrator.store.caches import NewEntry, Owner
from kici.orchestrator.store.database import Db, create_pool
from kici.orchestrator.store.secret_outputs import Sealed
from tests.support import postgres
from tests.support.explain import explained
from tests.support.postgres import Server

OWNER = Owner("k", "team/app-7")
WEEK, DAY = timedelta(days=7), timedelta(days=1)
JOB = "0000000c-0000-4000-8000-000000000007"
ENTRY = "0000000e-0000-4000-8000-000000000007"
ROWS = """
insert into execution_runs (run_id, workflow_name, provider, repo_identifier, ref, sha, workflow_sha)
values ('0000000b-0000-4000-8000-000000000001', 'ci', 'local', 'team/app-7', '', '', '');
insert into execution_jobs (run_id, job_id, job_name, base_job_name, position, definition, status, attempt)
select '0000000b-0000-4000-8000-000000000001', ('0000000c-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
       'job-' || n, 'job-' || n, n, '{"needs": [{"job": "job-8"}]}', 'running', 1
  from generate_series(1, 20000) n;
insert into execution_job_needs (run_id, job_id, upstream_job_id, job_name, upstream_name, run_on)
select j.run_id, j.job_id, u.job_id, j.job_name, u.job_name, '["success"]'
  from execution_jobs j join execution_jobs u on u.position = j.position + 1;
insert into secret_outputs (job_id, attempt, name, sealed, key_version)
select job_id, 1, 'S' || n, '', 1 from execution_jobs cross join generate_series(1, 5) n;
insert into caches (id, routing_key, repository, scope, key, state, object_key, size_bytes, run_id, job_id, used_at)
select ('0000000e-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'k', 'team/app-' || n % 2000,
       case when n % 5 = 0 then 'pr-' || n % 3 else '' end, 'uv-' || n,
       case when n % 1000 = 0 then 'gone' else 'ready' end, 'o', 100,
       gen_random_uuid(), gen_random_uuid(), now() - n * interval '7 seconds'
  from generate_series(1, 100000) n;
"""
STATEMENTS: dict[str, tuple[Callable[[Db], Awaitable[object]], int]] = {
    "finding by a key": (lambda db: caches.find(db, OWNER, ["", "pr-1"], "uv-7", WEEK), 20),
    "finding by a prefix": (lambda db: caches.newest(db, OWNER, ["", "pr-1"], "uv-", WEEK), 150),
    "finding one by its id": (lambda db: caches.ready(db, OWNER, ["", "pr-1"], ENTRY), 10),
    "noting a use": (lambda db: caches.touch(db, ENTRY), 40),
    "announcing": (
        lambda db: caches.announce(db, NewEntry(str(uuid.uuid4()), OWNER, "", "new", "o", JOB, JOB)),
        150,
    ),
    "publishing": (lambda db: caches.publish(db, ENTRY, 1, ""), 60),
    "locking": (lambda db: caches.lock(db, OWNER), 10),
    "what a repository keeps": (lambda db: caches.usage(db, OWNER), 150),
    "making room": (lambda db: caches.evict(db, OWNER, 150, trusted=True), 300),
    "dropping": (lambda db: caches.drop(db, ENTRY), 60),
    "expiring": (lambda db: caches.expire(db, DAY, 20), 700),
    "what is left over": (lambda db: caches.leftovers(db, grace=DAY, upload=DAY, batch=20), 100),
    "forgetting": (lambda db: caches.forget(db, [ENTRY]), 40),
    "a job's origin": (lambda db: origins.find(db, JOB, 1), 20),
    "holding an attempt": (lambda db: origins.hold(db, JOB, 1), 30),
    "keeping a secret output": (
        lambda db: secret_outputs.put(db, 1, Sealed(JOB, "S9", "", 1), limit=20),
        100,
    ),
    "secrets of needed jobs": (lambda db: secret_outputs.of_needed(db, JOB), 60),
}


@pytest.fixture(scope="module")
def filled_url(postgres_server: Server) -> Iterator[str]:
    name = f"{postgres_server.template}_kept"
    url = postgres.with_database(postgres_server.url, name)

    async def make() -> None:
        await postgres.execute(postgres_server.url, f"create database {name} template {postgres_server.template}")
        await postgres.execute(url, ROWS)
        await postgres.execute(url, "vacuum analyze")

    asyncio.run(make())
    try:
        yield url
    finally:
        asyncio.run(postgres.execute(postgres_server.url, f"drop database {name} with (force)"))


@pytest.fixture
async def filled(filled_url: str) -> AsyncIterator[Pool[Record]]:
    pool = await create_pool(filled_url, 2)
    try:
        yield pool
    finally:
        pool.terminate()


@pytest.mark.parametrize("name", STATEMENTS)
async def test_it_costs_the_same_however_much_others_keep(filled: Pool[Record], name: str) -> None:
    run, pages = STATEMENTS[name]
    async with explained(filled, answering=name == "what a repository keeps") as plan:
        await run(plan.db)
    assert plan.plans
    tables = ("caches", "secret_outputs", "execution_jobs", "execution_job_needs")
    assert [table for table in tables if plan.scans(table)] == [], plan.plans
    assert plan.buffers < pages, plan.plans
