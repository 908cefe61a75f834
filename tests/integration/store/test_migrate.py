from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import msgspec
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from kici.engine.completions import listens_to
from kici.engine.lock_triggers import JobCompleteTrigger, LifecycleTrigger, PushTrigger, WorkflowCompleteTrigger
from kici.orchestrator.store import migrate
from kici.orchestrator.store.migrations.sql import content_hash
from tests.support.locks import workflow

SCHEMA = """
select 'column' as kind, table_name || '.' || column_name as name,
       concat_ws(' ', data_type, character_maximum_length, is_nullable, column_default, is_identity) as definition
  from information_schema.columns where table_schema = 'public'
union all
select 'index', indexname, indexdef from pg_indexes where schemaname = 'public'
union all
select 'constraint', conname, pg_get_constraintdef(oid) from pg_constraint where connamespace = 'public'::regnamespace
union all
select 'storage', c.relname || '.' || a.attname, a.attstorage::text
  from pg_attribute a join pg_class c on c.oid = a.attrelid
 where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and a.attnum > 0 and not a.attisdropped
order by 1, 2, 3
"""


async def schema(url: str) -> list[tuple[str, str, str]]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(SCHEMA)]
    finally:
        await connection.close()


async def execute(url: str, statement: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def test_up_down_and_up_leaves_the_same_schema(empty_database_url: str) -> None:
    await migrate.run(empty_database_url, "upgrade", "head")
    first = await schema(empty_database_url)
    assert len(first) > 100

    await migrate.run(empty_database_url, "downgrade", "base")
    left = {name.split(".")[0] for kind, name, _ in await schema(empty_database_url) if kind == "column"}
    assert left == {"alembic_version", "schema_history"}

    await migrate.run(empty_database_url, "upgrade", "head")
    assert await schema(empty_database_url) == first


async def test_what_was_registered_before_is_told_of_ends_as_what_is_registered_now(empty_database_url: str) -> None:
    workflows = [
        workflow("none", on=[PushTrigger()]),
        workflow("any", on=[WorkflowCompleteTrigger(), JobCompleteTrigger(job=("build",))]),
        workflow("named", on=[WorkflowCompleteTrigger(("ci", "docs")), JobCompleteTrigger(workflow=("ci",))]),
        workflow("failed", on=[LifecycleTrigger(("job_failed",)), PushTrigger()]),
        workflow("both", on=[LifecycleTrigger(("workflow_complete", "job_complete"))]),
    ]
    await migrate.run(empty_database_url, "upgrade", "0006")
    connection = await asyncpg.connect(empty_database_url)
    try:
        for one in workflows:
            await connection.execute(
                """
                insert into workflow_registrations
                  (repo_identifier, workflow_name, lock_entry, trigger_types, routing_key, customer_id)
                values ('team/app', $1, $2, $3, 'k', 'default')
                """,
                one.name,
                msgspec.json.encode(one).decode(),
                [str(trigger.__struct_config__.tag) for trigger in one.triggers],
            )
        await migrate.run(empty_database_url, "upgrade", "head")
        rows = await connection.fetch("select workflow_name, listens_to from workflow_registrations")
    finally:
        await connection.close()
    assert {row["workflow_name"]: sorted(row["listens_to"] or ()) for row in rows} == {
        one.name: listens_to(one) for one in workflows
    }


async def test_artifacts_of_before_count_for_their_repository_and_pull_request(empty_database_url: str) -> None:
    await migrate.run(empty_database_url, "upgrade", "0008")
    connection = await asyncpg.connect(empty_database_url)
    try:
        for number, (routing_key, trust, event) in enumerate(
            [(None, None, "{}"), ("github:1", "unknown", '{"prNumber": 7}'), ("github:1", None, '{"prNumber": 8}')]
        ):
            await connection.execute(
                """
                with run as (
                  insert into execution_runs (run_id, workflow_name, provider, repo_identifier, ref, sha, workflow_sha,
                                              routing_key, trust_tier, event)
                  values (gen_random_uuid(), 'ci', 'local', 'team/app', '', '', '', $2, $3, $4::text::jsonb)
                  returning run_id
                )
                insert into artifacts (run_id, job_id, attempt, name, object_key, size_bytes, sha256)
                select run_id, gen_random_uuid(), 1, $1, 'artifacts/' || $1, 1, '' from run
                """,
                str(number),
                routing_key,
                trust,
                event,
            )
        await migrate.run(empty_database_url, "upgrade", "head")
        rows = await connection.fetch("select routing_key, repository, pull_request from artifacts order by name")
    finally:
        await connection.close()
    assert [tuple(row) for row in rows] == [
        ("", "team/app", None),
        ("github:1", "team/app", 7),
        ("github:1", "team/app", None),
    ]


async def test_the_newest_file_is_alembics_head() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.FOLDER))
    script = ScriptDirectory.from_config(config)
    assert script.get_heads() == [migrate.head()]
    assert sorted(revision.revision for revision in script.walk_revisions()) == migrate.revisions()


def test_every_revision_has_its_way_down() -> None:
    versions = migrate.FOLDER / "versions"
    for path in versions.glob("*.up.sql"):
        assert Path(str(path).replace(".up.sql", ".down.sql")).read_text().strip()


async def test_the_history_says_what_was_applied_with_which_content(database_url: str) -> None:
    assert await execute(database_url, "select content_hash from schema_history where revision = '0001'") == (
        content_hash("0001")
    )


async def test_two_that_migrate_at_once_do_it_once(empty_database_url: str) -> None:
    async with asyncio.timeout(60):
        await asyncio.gather(*(migrate.ensure(empty_database_url) for _ in range(2)))
    assert await migrate.stored_revision(empty_database_url) == migrate.head()
    assert await execute(empty_database_url, "select count(*) from schema_history") == len(migrate.revisions())


async def test_a_database_of_the_original_is_refused_by_name(empty_database_url: str) -> None:
    await execute(empty_database_url, "create table kysely_migration (name text)")
    with pytest.raises(migrate.MigrationError, match="made by the original KiCI"):
        await migrate.ensure(empty_database_url)


async def test_an_older_database_is_not_touched_without_leave(empty_database_url: str) -> None:
    with pytest.raises(migrate.MigrationError, match=rf"at revision none, this program needs {migrate.head()}"):
        await migrate.ensure(empty_database_url, auto=False)
    assert await schema(empty_database_url) == []


async def test_a_newer_database_still_serves(database_url: str) -> None:
    await execute(database_url, "update alembic_version set version_num = '9999'")
    await migrate.ensure(database_url)
    assert await migrate.stored_revision(database_url) == "9999"


async def test_a_migration_that_fails_leaves_nothing_and_says_why(empty_database_url: str) -> None:
    await execute(empty_database_url, "create table outbox (id int)")
    before = await schema(empty_database_url)
    with pytest.raises(migrate.MigrationError, match='relation "outbox" already exists'):
        await migrate.ensure(empty_database_url)
    left = [entry for entry in await schema(empty_database_url) if not entry[1].startswith("alembic_version")]
    assert left == before
