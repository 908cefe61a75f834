"""A database in which a million jobs wait that no agent can run, with a million rows of history beside them.

Made once for all tests of a process that look at plans; they roll back what they change. Indexes are dropped before the
rows come and built after them, which is what makes it bearable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
from asyncpg import Connection, Record

from tests.support import postgres
from tests.support.postgres import Server

SESSION = "0000000f-0000-4000-8000-000000000001"
"""Of an agent that can run the jobs of `team/app-0` and `team/app-1`, of which 20 are free and 20 are its own."""
WAITING = 1_000_000
"""Free rows in the queue, all of one label set, of 50 repositories."""
HISTORY = 1_000_000
"""Rows of runs, jobs, steps and events that have ended, together."""

REFERRING = ("event_payloads", "execution_job_needs", "secret_outputs", "execution_jobs")
"""Tables that refer to those below, and so become unlogged before them."""
TABLES = ("dispatch_queue", "execution_runs", "execution_jobs", "execution_steps", "event_log")
BESIDE = ("execution_job_needs", "artifacts", "outbox", "concurrency_groups")
"""Tables of which there are 100,000 rows or more besides, as of the partition of the logs."""
LOG_CHUNKS = "log_chunks_2026010203"
LOG_HOUR = "2026-01-02 03:00:00+00"
"""Of the partition that holds chunks of 100 steps, 1,000 of each."""

INDEXES = """
select case when k.oid is null then 'drop index ' || i.indexrelid::regclass
            else 'alter table ' || i.indrelid::regclass || ' drop constraint ' || quote_ident(k.conname) end as removal,
       case when k.oid is null then pg_get_indexdef(i.indexrelid)
            else 'alter table ' || i.indrelid::regclass || ' add constraint ' || quote_ident(k.conname) || ' '
                 || pg_get_constraintdef(k.oid) end as making
  from pg_index i left join pg_constraint k on k.conindid = i.indexrelid and k.contype in ('p', 'u')
 where i.indrelid = any($1::regclass[])
   and not exists (select from pg_constraint f where f.conindid = i.indexrelid and f.contype = 'f')
"""
"""How each index goes and comes back; but for those to which foreign keys refer."""

ROWS = """
insert into label_sets (key, labels, excludes)
values ('mainframe', '{mainframe}', '{}'), ('linux', '{kici:os:linux}', '{}');
insert into coordinators (instance, lease_expires_at, version) values ('here', now() + interval '1 day', 't');
insert into agent_sessions (id, agent_id, boot_id, coordinator, protocol, labels, slots)
select ('0000000f-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'agent-' || n, 'boot', 'here', 1,
       '{kici:os:linux}', 4
  from generate_series(1, 50) n;
insert into agent_sessions (id, agent_id, boot_id, coordinator, protocol, labels, slots, closed_at)
select gen_random_uuid(), 'ephemeral-' || n, 'boot', 'gone', 1, array['kici:os:linux', 'kici:host:' || n], 1,
       now() - n * interval '1 minute'
  from generate_series(1, 50000) n;

-- what an agent can run: a few jobs of two repositories, some of them claimed
insert into dispatch_queue (id, run_id, workflow_name, job_name, repository, label_set_id, sort_key, attempt,
                            session_id, accepted_at, claimed_at, ack_deadline, job_token_hash, expires_at)
select ('00000010-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, gen_random_uuid(), 'ci', 'job-' || n,
       'team/app-' || n % 2, (select id from label_sets where key = 'linux'), extract(epoch from now()) - n,
       (n <= 20)::int, case when n <= 20 then '0000000f-0000-4000-8000-000000000001'::uuid end,
       case when n <= 10 then now() end, case when n <= 20 then now() end,
       case when n between 11 and 20 then now() + interval '1 hour' end, case when n <= 20 then 'hash-' || n end,
       now() + interval '1 day'
  from generate_series(1, 40) n;

-- open runs, ten waiting jobs each; those of the newest run have their job rows, which explanations read
insert into execution_runs (run_id, workflow_name, status, provider, routing_key, repo_identifier, ref, sha,
                            workflow_sha, created_at)
select ('0000000a-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'crowd', 'pending', 'local', 'k',
       'crowd-' || n % 50, 'refs/heads/main', 'a', 'a', now() - n * interval '1 second'
  from generate_series(1, {waiting} / 10) n;
insert into dispatch_queue (id, run_id, workflow_name, job_name, repository, label_set_id, sort_key, expires_at)
select ('0000000b-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
       ('0000000a-0000-4000-8000-' || lpad(to_hex(1 + n % ({waiting} / 10)), 12, '0'))::uuid,
       'crowd', 'job-' || n % 10, 'crowd-' || (1 + n % ({waiting} / 10)) % 50,
       (select id from label_sets where key = 'mainframe'),
       extract(epoch from now()) - n, now() + interval '1 day'
  from generate_series(0, {waiting} - 1) n;

-- what has been: each run with one job of two steps, and the event that began it
insert into execution_runs (run_id, event_id, workflow_name, status, provider, routing_key, repo_identifier, ref, sha,
                            workflow_sha, trigger_event, created_at, completed_at)
select ('0000000c-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
       ('0000000d-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'ci', 'success', 'local', 'k',
       'team/app-' || n % 50, 'refs/heads/main', n::text, n::text, 'push', now() - n * interval '1 minute',
       now() - n * interval '1 minute'
  from generate_series(1, {history} / 5) n;
insert into execution_jobs (run_id, job_id, job_name, base_job_name, position, definition, status, attempt, session_id,
                            agent_id, created_at, completed_at)
select run_id, run_id, 'build', 'build', 0, '{{}}', 'success', 1,
       '0000000e-0000-4000-8000-000000000000'::uuid, 'gone', created_at, created_at
  from execution_runs where status = 'success';
insert into execution_jobs (run_id, job_id, job_name, base_job_name, position, definition, status)
select run_id, id, job_name, job_name, 0, '{{}}', 'queued' from dispatch_queue
 where run_id = '0000000a-0000-4000-8000-000000000001';
insert into execution_steps (run_id, job_id, attempt, step_index, step_name, status)
select run_id, job_id, 1, n, 'step', 'success' from execution_jobs cross join generate_series(0, 1) n
 where status = 'success';
insert into event_log (id, org_id, delivery_id, routing_key, event, source, provider, payload_size_bytes, payload_hash,
                       status, received_at, processed_at, repo_identifier, ref)
select ('0000000d-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'default', 'old-' || n, 'k', 'push', 'direct',
       'local', 0, '', 'processed', now() - n * interval '1 minute', now(), 'team/app-' || n % 50, 'refs/heads/main'
  from generate_series(1, {history} / 5) n;
insert into event_payloads (event_id, body)
select id, '{{}}' from event_log where delivery_id in (select 'old-' || n from generate_series(1, 100) n);
insert into execution_job_needs (run_id, job_id, upstream_job_id, job_name, upstream_name, run_on)
select run_id, job_id, job_id, 'build', 'build', '["success"]' from execution_jobs where status = 'success';
insert into artifacts (run_id, job_id, attempt, name, object_key, size_bytes, sha256)
select run_id, job_id, 1, 'wheel', 'k', 1, '' from execution_jobs where status = 'success';
insert into outbox (kind, target, dedupe_key, due_at)
select case when n % 100 = 0 then 'compact_log' else 'notify' end, n::text, n::text, now() - n * interval '1 second'
  from generate_series(1, {history} / 10) n;
insert into concurrency_groups (group_key, routing_key, run_id, status, completed_at)
select 'g-' || n % 50, 'k::team/app-' || n % 50, run_id, 'completed', now()
  from (select run_id, row_number() over () as n from execution_runs where status = 'success') r;
create table log_chunks_2026010203 (like log_chunks including defaults);
alter table log_chunks attach partition log_chunks_2026010203
  for values from ('2026-01-02 03:00:00+00') to ('2026-01-02 04:00:00+00');
update execution_jobs set log_hour = '2026-01-02 03:00:00+00', agent_id = 'agent-1'
 where job_id in (select ('0000000c-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid from generate_series(1, 100) n);
insert into log_chunks (log_hour, job_id, attempt, step_index, sequence, first_line, lines, bytes)
select '2026-01-02 03:00:00+00', ('0000000c-0000-4000-8000-' || lpad(to_hex(step), 12, '0'))::uuid, 1, 0, n, 10 * n, 10,
       decode(repeat(md5(n::text), 8), 'hex')
  from generate_series(1, 100) step, generate_series(0, {history} / 1000 - 1) n;
"""


async def fill(db: Connection[Record], *, waiting: int = WAITING, history: int = HISTORY) -> None:
    """Put the rows into an empty migrated database, and tell the planner."""
    unlogged = tuple(dict.fromkeys((*REFERRING, *TABLES, *BESIDE)))
    async with db.transaction():
        for table in unlogged:
            await db.execute(f"alter table {table} set unlogged")
        await db.execute("set local session_replication_role = replica")  # foreign keys are not looked up row by row
        await db.execute("set local maintenance_work_mem = '256MB'")
        indexes = await db.fetch(INDEXES, list(unlogged))
        for index in indexes:
            await db.execute(index["removal"])
        await db.execute(
            ROWS.replace("{{}}", "{}").replace("{waiting}", str(waiting)).replace("{history}", str(history))
        )
        for index in indexes:
            await db.execute(index["making"])
    await db.execute("vacuum analyze")


@contextmanager
def database(server: Server, *, waiting: int = WAITING, history: int = HISTORY) -> Iterator[str]:
    """The URL of such a database, for as long as the block lasts."""
    name = f"{server.template}_{waiting}"
    url = postgres.with_database(server.url, name)

    async def make() -> None:
        await postgres.execute(server.url, f"create database {name} template {server.template}")
        db = await asyncpg.connect(url, timeout=10)
        try:
            await fill(db, waiting=waiting, history=history)
        finally:
            await db.close()

    asyncio.run(make())
    try:
        yield url
    finally:
        asyncio.run(postgres.execute(server.url, f"drop database {name} with (force)"))
