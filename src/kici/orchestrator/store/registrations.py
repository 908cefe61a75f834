"""Which workflows each repository has on its default branch: what events without a repository are matched against."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from msgspec import Struct

from kici.engine.completions import listens_to
from kici.engine.lockfile import LockWorkflow
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.events import ORG


class RepositoryContext(Struct, frozen=True, rename="camel"):
    """How to get at the repository; in the column `provider_context`."""

    provider: str
    clone_url: str
    default_branch: str
    lock_sha256: str


class Repository(Struct, frozen=True):
    routing_key: str
    repo: str
    context: RepositoryContext


class Registration(Struct, frozen=True):
    repository: Repository
    workflow: LockWorkflow
    commit_sha: str


async def replace(
    db: Db, repository: Repository, commit_sha: str, workflows: Sequence[LockWorkflow], pushed_at: datetime
) -> bool:
    """Make these the repository's registrations; an operator's `disabled` flag stays. An empty set is one too.

    False, and nothing is changed, if a later push to the default branch was processed before this one.
    """
    await db.execute(
        "select pg_advisory_xact_lock(hashtextextended('registrations ' || $1 || ' ' || $2, 0))",
        repository.routing_key,
        repository.repo,
    )
    overtaken = await db.fetchval(
        """
        select exists (
          select from event_log
           where org_id = $1 and received_at > $2 and processed_at is not null
             and routing_key = $3 and repo_identifier = $4 and ref = $5 and event = 'push')
        """,
        ORG,
        pushed_at,
        repository.routing_key,
        repository.repo,
        f"refs/heads/{repository.context.default_branch}",
    )
    if overtaken:
        return False
    await db.execute(
        """
        delete from workflow_registrations
         where routing_key = $1 and repo_identifier = $2 and workflow_name <> all($3::text[])
        """,
        repository.routing_key,
        repository.repo,
        [workflow.name for workflow in workflows],
    )
    await db.executemany(
        """
        insert into workflow_registrations as r
          (routing_key, repo_identifier, workflow_name, lock_entry, trigger_types, provider_context, commit_sha,
           source_file, customer_id, listens_to)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, nullif($10::text[], '{}'))
        on conflict (routing_key, repo_identifier, workflow_name) do update
           set lock_entry = excluded.lock_entry, trigger_types = excluded.trigger_types,
               provider_context = excluded.provider_context, commit_sha = excluded.commit_sha,
               source_file = excluded.source_file, listens_to = excluded.listens_to, updated_at = now()
        """,
        [
            (
                repository.routing_key,
                repository.repo,
                workflow.name,
                workflow,
                sorted({str(trigger.__struct_config__.tag) for trigger in workflow.triggers}),
                repository.context,
                commit_sha,
                workflow.source.file,
                ORG,
                listens_to(workflow),
            )
            for workflow in workflows
        ],
    )
    return True


async def with_trigger(db: Db, *trigger_types: str) -> list[Registration]:
    """All that have a trigger of one of these types and are not disabled, by repository and name."""
    rows = await db.fetch(
        """
        select routing_key, repo_identifier, provider_context, lock_entry, commit_sha
          from workflow_registrations
         where trigger_types && $1::text[] and not disabled and customer_id = $2
         order by repo_identifier, routing_key, workflow_name
        """,
        list(trigger_types),
        ORG,
    )
    return [
        Registration(
            Repository(
                row["routing_key"],
                row["repo_identifier"],
                msgspec.convert(row["provider_context"], RepositoryContext),
            ),
            msgspec.convert(row["lock_entry"], LockWorkflow),
            row["commit_sha"],
        )
        for row in rows
    ]


async def workflow(db: Db, repository: Repository, name: str) -> LockWorkflow | None:
    """As it is on the repository's default branch."""
    entry = await db.fetchval(
        """
        select lock_entry from workflow_registrations
         where routing_key = $1 and repo_identifier = $2 and workflow_name = $3 and customer_id = $4
        """,
        repository.routing_key,
        repository.repo,
        name,
        ORG,
    )
    return None if entry is None else msgspec.convert(entry, LockWorkflow)


async def repositories(db: Db) -> list[Repository]:
    """Every repository with a workflow on its default branch, once for each source that tells of it."""
    rows = await db.fetch(
        """
        select distinct on (repo_identifier, routing_key) repo_identifier, routing_key, provider_context
          from workflow_registrations
         where customer_id = $1
         order by repo_identifier, routing_key, updated_at desc
        """,
        ORG,
    )
    return [
        Repository(
            row["routing_key"], row["repo_identifier"], msgspec.convert(row["provider_context"], RepositoryContext)
        )
        for row in rows
    ]
