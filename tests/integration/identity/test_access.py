from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from asyncpg import Pool, Record
from litestar import Request, get

from kici.orchestrator import http
from kici.orchestrator.errors import Invalid, Unauthorized
from kici.orchestrator.identity import tokens
from kici.orchestrator.identity.access import Access
from kici.orchestrator.identity.tokens import digest
from kici.orchestrator.store import tokens as stored
from tests.support.services import running


@pytest.fixture
async def client(pool: Pool[Record]) -> AsyncIterator[httpx.AsyncClient]:
    access = Access(pool)

    @get("/runs", guards=[access.guard("run.read")])
    async def runs(request: Request[Any, Any, Any]) -> dict[str, str]:
        return {"actor": request.user.actor, "role": request.auth.role}

    @get("/tokens", guards=[access.guard("token.manage")])
    async def manage() -> None:
        return None

    with http.listen("127.0.0.1", 0, None) as listener:
        server = http.HttpServer(http.application([runs, manage]), listener)
        async with running(server), httpx.AsyncClient(base_url=http.address(listener), timeout=10) as client:
            await server.listening.wait()
            yield client


async def made(pool: Pool[Record], role: str, **options: Any) -> tokens.Created:
    async with pool.acquire() as db:
        return await tokens.create_admin(db, label=f"a {role}", role=role, **options)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_a_token_with_the_permission_gets_in_and_is_known(pool: Pool[Record], client: httpx.AsyncClient) -> None:
    created = await made(pool, "developer")
    answer = await client.get("/runs", headers=bearer(created.token))
    assert answer.json() == {"actor": "admin_token:a developer", "role": "developer"}
    assert await pool.fetchval("select last_used_at is not null from admin_tokens where id = $1", created.id)


async def test_a_token_without_the_permission_is_told_which_it_lacks(
    pool: Pool[Record], client: httpx.AsyncClient
) -> None:
    created = await made(pool, "auditor")
    answer = await client.get("/tokens", headers=bearer(created.token))
    assert (answer.status_code, answer.json()["error"]) == (
        403,
        'Role "auditor" does not have permission "token.manage"',
    )


@pytest.mark.parametrize("header", [{}, {"Authorization": "Basic abc"}, {"Authorization": "Bearer"}])
async def test_without_a_bearer_token_nobody_gets_in(client: httpx.AsyncClient, header: dict[str, str]) -> None:
    answer = await client.get("/runs", headers=header)
    assert (answer.status_code, answer.json()["error"]) == (401, "Missing authorization")


async def test_an_unknown_revoked_or_expired_token_does_not_get_in(
    pool: Pool[Record], client: httpx.AsyncClient
) -> None:
    revoked, expired = await made(pool, "owner"), await made(pool, "owner")
    assert (await client.get("/runs", headers=bearer(revoked.token))).status_code == 200
    async with pool.acquire() as db:
        assert await stored.revoke_admin(db, revoked.id)
        assert not await stored.revoke_admin(db, revoked.id)
    await pool.execute("update admin_tokens set expires_at = now() where id = $1", expired.id)
    for token in (revoked.token, expired.token, "f" * 64, "é"):
        answer = await client.get("/runs", headers={b"Authorization": f"Bearer {token}".encode()})
        assert (answer.status_code, answer.json()["error"][:24]) == (401, "Invalid or expired token")


async def test_a_token_of_one_routing_key_is_refused_where_everything_is_shown(
    pool: Pool[Record], client: httpx.AsyncClient
) -> None:
    created = await made(pool, "owner", routing_key="github:1")
    answer = await client.get("/runs", headers=bearer(created.token))
    assert answer.status_code == 403
    assert "unscoped" in answer.json()["error"]


async def test_only_the_hash_of_a_token_is_stored_and_its_text_is_not_shown(pool: Pool[Record]) -> None:
    created = await made(pool, "owner")
    assert len(created.token) == 64
    assert created.token not in repr(created)
    row = await pool.fetchrow("select * from admin_tokens")
    assert row is not None
    assert row["token_hash"] == digest(created.token)
    assert created.token not in str(dict(row))


@pytest.mark.parametrize("options", [{"role": "king", "label": "a"}, {"role": "owner", "label": "bootstrap"}])
async def test_an_unknown_role_and_a_reserved_label_are_refused(pool: Pool[Record], options: dict[str, Any]) -> None:
    async with pool.acquire() as db:
        with pytest.raises(Invalid):
            await tokens.create_admin(db, **options)


async def test_a_permission_that_does_not_exist_is_a_fault_of_the_route(pool: Pool[Record]) -> None:
    with pytest.raises(ValueError, match=r"no permission 'run\.raed'"):
        Access(pool).guard("run.raed")


async def test_an_agent_is_known_by_its_token_until_that_is_revoked(pool: Pool[Record]) -> None:
    access = Access(pool)
    async with pool.acquire() as db:
        created = await tokens.create_agent(db, labels=["docker"], created_by="test")
    agent = await access.agent(created.token)
    assert agent.token_id == created.id
    assert agent.labels == ("docker",)
    async with pool.acquire() as db:
        assert [token.token_prefix for token in await stored.list_agent(db)] == [created.token[:12]]
        assert await stored.revoke_agent(db, created.id)
    with pytest.raises(Unauthorized, match="revoked"):
        await access.agent(created.token)


async def test_a_job_token_lives_as_long_as_its_attempt(pool: Pool[Record]) -> None:
    access, token = Access(pool), tokens.new_job_token()
    await pool.execute(
        """
        with labels as (insert into label_sets (key, labels, excludes) values ('linux', '{linux}', '{}') returning id)
        insert into dispatch_queue
               (id, run_id, workflow_name, job_name, repository, label_set_id, sort_key, attempt, job_token_hash)
        select gen_random_uuid(), gen_random_uuid(), 'ci', 'build', 'octo/app', id, 0, 2, $1 from labels
        """,
        digest(token),
    )
    job = await access.job(token)
    assert (job.attempt, job.repository) == (2, "octo/app")
    for other in (tokens.new_job_token(), token[:-1], token.removeprefix("kjt_"), ""):
        with pytest.raises(Unauthorized):
            await access.job(other)
    await pool.execute("delete from dispatch_queue")
    with pytest.raises(Unauthorized):
        await access.job(token)
