from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from asyncpg import Pool, Record

from kici.orchestrator.identity.tokens import create_admin, digest, new_job_token
from tests.support import rows
from tests.support.api_server import JOB_TOKEN, TOKENS, Parts, client, serve


@pytest.fixture
async def parts(pool: Pool[Record], database_url: str, tmp_path: Path) -> AsyncIterator[Parts]:
    async with serve(pool, database_url, tmp_path) as served:
        yield served


@pytest.fixture
async def admin(parts: Parts) -> AsyncIterator[httpx.AsyncClient]:
    async with client(parts.url, TOKENS["admin"]) as opened:
        yield opened


@pytest.fixture
async def job(pool: Pool[Record]) -> rows.Job:
    """A running job of two steps with a valid job token."""
    job = await rows.add_job(pool, await rows.add_run(pool), steps=("compile", "test"))
    await rows.add_queue_row(pool, job, token_hash=digest(JOB_TOKEN))
    return job


@pytest.fixture
def admin_token(pool: Pool[Record]) -> Callable[[str], Awaitable[str]]:
    """Makes a token of a role."""

    async def make(role: str) -> str:
        async with pool.acquire() as db:
            return (await create_admin(db, label=role, role=role)).token

    return make


@pytest.fixture
def job_token(pool: Pool[Record]) -> Callable[[str], Awaitable[str]]:
    """Makes the token of an attempt that runs, of a job of this repository."""

    async def make(repository: str) -> str:
        token = new_job_token()
        await pool.execute(
            """
            with labels as (
              insert into label_sets (key, labels, excludes) values (gen_random_uuid()::text, '{}', '{}') returning id
            )
            insert into dispatch_queue (id, run_id, workflow_name, job_name, repository, label_set_id, sort_key,
                                        attempt, session_id, job_token_hash)
            select gen_random_uuid(), gen_random_uuid(), 'ci', 'build', $1, id, 0, 1, gen_random_uuid(), $2
              from labels
            """,
            repository,
            digest(token),
        )
        return token

    return make
