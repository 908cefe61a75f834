"""What the statements about caches and secret outputs cost beside a hundred thousand rows of others."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.store import artifact_quota, caches, origins, secret_outputs, uploads
from kici.orchestrator.store.artifacts import Replaced
from kici.orchestrator.store.caches import NewEntry, Owner
from kici.orchestrator.store.database import Db, create_pool
from kici.orchestrator.store.secret_outputs import Sealed
from kici.orchestrator.store.uploads import Upload
from tests.support import postgres
from tests.support.explain import explained
from tests.support.postgres import Server

OWNER = Owner("k", "team/app-7")
WEEK, DAY = timedelta(days=7), timedelta(days=1)
JOB = "0000000c-0000-4000-8000-000000000007"
ENTRY = "0000000e-0000-4000-8000-000000000007"
RUN = "0000000f-0000-4000-8000-000000000007"
SESSION = "0000000d-0000-4000-8000-000000000007"
UPLOAD = Upload("0000000d-0000-4000-8001-000000000007", JOB, JOB, 1, "cache", "k", "o", 1)
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
insert into uploads (id, run_id, job_id, attempt, kind, name, object_key, part_bytes, state, expires_at, routing_key,
                     repository, granted_parts)
select ('0000000d-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, gen_random_uuid(),
       ('0000000c-0000-4000-8000-' || lpad(to_hex(n % 20000), 12, '0'))::uuid, 1,
       case when n % 7 = 0 then 'artifact' else 'cache' end, 'uv', 'o', 1,
       case when n % 3 = 0 then 'published' when n % 3 = 1 then 'open' else 'over' end,
       now() + (n - 50000) * interval '1 second', 'k', 'team/app-' || n % 2000, 4
  from generate_series(1, 100000) n;
insert into artifacts (run_id, job_id, attempt, name, object_key, size_bytes, sha256, routing_key, repository)
select ('0000000f-0000-4000-8000-' || lpad(to_hex(n / 50), 12, '0'))::uuid, gen_random_uuid(), 1, 'wheel-' || n,
       case when n % 10 = 0 then '' else 'artifacts/' || n end, 100, '', 'k', 'team/app-' || n % 2000
  from generate_series(1, 100000) n;
"""
STATEMENTS: dict[str, tuple[Callable[[Db], Awaitable[object]], int]] = {
    "finding by a key": (lambda db: caches.find(db, OWNER, ["", "pr-1"], "uv-7", WEEK), 20),
    "finding by a prefix": (lambda db: caches.newest(db, OWNER, ["", "pr-1"], "uv-", WEEK), 150),
    "finding one by its id": (lambda db: caches.ready(db, OWNER, ["", "pr-1"], ENTRY), 10),
    "noting a use": (lambda db: caches.touch(db, ENTRY), 40),
    "finding one that may be gone": (lambda db: caches.by_id(db, OWNER, ["", "pr-1"], ENTRY), 10),
    "publishing": (
        lambda db: caches.publish(db, NewEntry(str(uuid.uuid4()), OWNER, "", "new", "o", JOB, JOB, 1, 1, "")),
        150,
    ),
    "locking": (lambda db: caches.lock(db, OWNER), 10),
    "what a repository keeps": (lambda db: caches.usage(db, OWNER), 150),
    "making room": (lambda db: caches.evict(db, OWNER, 150, trusted=True), 300),
    "dropping": (lambda db: caches.drop(db, ENTRY), 60),
    "expiring": (lambda db: caches.expire(db, DAY, 20), 700),
    "what is left over": (lambda db: caches.leftovers(db, grace=DAY, batch=20), 100),
    "forgetting": (lambda db: caches.forget(db, [ENTRY]), 40),
    "beginning an upload": (lambda db: uploads.begin(db, UPLOAD, DAY), 150),
    "an upload": (lambda db: uploads.find(db, SESSION, JOB, 1), 10),
    "holding an upload": (lambda db: uploads.hold(db, SESSION, JOB, 1), 20),
    "a job's unpublished uploads": (lambda db: uploads.unpublished(db, JOB), 20),
    "bytes of a job's unpublished uploads": (lambda db: uploads.sending(db, JOB, "cache"), 20),
    "ending an upload": (lambda db: uploads.end(db, SESSION, "over", "", DAY), 60),
    "leaving a replaced artifact": (
        lambda db: uploads.leave(db, Replaced(SESSION, JOB, JOB, 1, "wheel", "o", None), DAY),
        60,
    ),
    "granting parts": (lambda db: uploads.grant(db, SESSION, 20), 60),
    "locking a repository's artifacts": (lambda db: artifact_quota.lock(db, OWNER), 10),
    "what a repository's artifacts take": (lambda db: artifact_quota.kept(db, OWNER, 7), 60),
    "what is being sent of them": (lambda db: artifact_quota.sending(db, OWNER, 7), 60),
    "how many artifacts a run has": (lambda db: artifact_quota.count(db, RUN), 20),
    "closing uploads": (lambda db: uploads.expire(db, DAY, 20), 700),
    "what uploads have left": (lambda db: uploads.leftovers(db, 20), 100),
    "forgetting uploads": (lambda db: uploads.forget(db, [SESSION]), 60),
    "a job's origin": (lambda db: origins.find(db, JOB, 1), 20),
    "holding an attempt": (lambda db: origins.hold(db, JOB, 1), 30),
    "keeping a secret output": (
        lambda db: secret_outputs.put(db, 1, Sealed(JOB, "S9", "", 1), limit=20),
        100,
    ),
    "secrets of needed jobs": (lambda db: secret_outputs.of_needed(db, JOB), 60),
}
ANSWERING = (
    "what a repository keeps",
    "a job's unpublished uploads",
    "bytes of a job's unpublished uploads",
    "what a repository's artifacts take",
    "what is being sent of them",
    "how many artifacts a run has",
)


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
    async with explained(filled, answering=name in ANSWERING) as plan:
        await run(plan.db)
    assert plan.plans
    tables = ("caches", "uploads", "artifacts", "secret_outputs", "execution_jobs", "execution_job_needs")
    assert [table for table in tables if plan.scans(table)] == [], plan.plans
    assert plan.buffers < pages, plan.plans
