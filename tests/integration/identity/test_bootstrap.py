from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.errors import Unauthorized
from kici.orchestrator.identity import tokens
from kici.orchestrator.identity.access import Access
from kici.orchestrator.identity.bootstrap import bootstrap
from kici.orchestrator.settings import Settings, SettingsError


async def given(pool: Pool[Record], settings: Settings) -> None:
    async with pool.acquire() as db, db.transaction():
        await bootstrap(db, settings)


async def test_the_admin_token_of_the_setting_is_an_owner_and_replaces_the_one_before(pool: Pool[Record]) -> None:
    first, second = "a" * 64, "b" * 64
    access = Access(pool)
    for token in (first, first, second):
        await given(pool, Settings(bootstrap_admin_token=token))
        assert (await access.principal(token)).role == "owner"
    with pytest.raises(Unauthorized):
        await access.principal(first)
    assert await pool.fetchval("select count(*) from admin_tokens") == 1


async def test_tokens_of_files_let_their_holders_in(pool: Pool[Record], tmp_path: Path) -> None:
    admin, agent = tmp_path / "admin", tmp_path / "agent"
    admin.write_text(f"{tokens.new_admin_token()}\n")
    agent.write_text(f"{tokens.new_agent_token()}\n")
    settings = Settings(bootstrap_admin_token_file=admin, bootstrap_agent_token_file=agent)
    await given(pool, settings)
    await given(pool, settings)
    access = Access(pool)
    assert (await access.principal(admin.read_text().strip())).label == "bootstrap"
    assert (await access.agent(agent.read_text().strip())).labels is None
    assert await pool.fetchval("select count(*) from agent_tokens") == 1


async def test_a_bad_bootstrap_token_is_refused_without_repeating_it(pool: Pool[Record], tmp_path: Path) -> None:
    weak = tmp_path / "token"
    weak.write_text("hunter2")
    for settings in (
        Settings(bootstrap_admin_token="hunter2"),
        Settings(bootstrap_admin_token_file=weak),
        Settings(bootstrap_agent_token_file=weak),
        Settings(bootstrap_agent_token_file=tmp_path / "missing"),
    ):
        with pytest.raises(SettingsError, match="KICI_BOOTSTRAP_") as caught:
            await given(pool, settings)
        assert "hunter2" not in str(caught.value)


async def test_without_settings_nobody_is_let_in(pool: Pool[Record]) -> None:
    await given(pool, Settings())
    assert await pool.fetchval("select count(*) from admin_tokens") == 0


async def test_coordinators_that_start_at_the_same_moment_do_not_disturb_each_other(pool: Pool[Record]) -> None:
    """Each round begins as the first start on an empty database does."""

    settings = Settings(bootstrap_admin_token="a" * 64)
    for _ in range(50):
        await pool.execute("delete from admin_tokens")
        await asyncio.gather(*(given(pool, settings) for _ in range(4)))
        assert await pool.fetchval("select count(*) from admin_tokens") == 1
