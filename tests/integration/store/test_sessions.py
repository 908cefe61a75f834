from __future__ import annotations

import pytest
from asyncpg import LockNotAvailableError, Pool, Record

from kici.orchestrator.errors import LeaseLost
from kici.orchestrator.store import sessions
from tests.support.rows import add_session

HERE = "here"
RENEWAL = "select from coordinators for no key update nowait"
TAKEOVER = "select from coordinators for update nowait"
CHANGE = "select from agent_sessions for no key update nowait"


@pytest.fixture(autouse=True)
async def coordinator(pool: Pool[Record]) -> None:
    await pool.execute(
        "insert into coordinators (instance, lease_expires_at, version) values ($1, now() + interval '1 h', 't')", HERE
    )


async def test_nobody_takes_a_coordinators_sessions_while_it_acts_under_its_lease(pool: Pool[Record]) -> None:
    async with pool.acquire() as db, db.transaction():
        await sessions.hold_lease(db, HERE)
        with pytest.raises(LockNotAvailableError):
            await pool.execute(TAKEOVER)
        await pool.execute(RENEWAL)


async def test_a_coordinator_whose_lease_has_lapsed_does_not_act(pool: Pool[Record]) -> None:
    await pool.execute("update coordinators set lease_expires_at = now() - interval '1 s'")
    async with pool.acquire() as db, db.transaction():
        with pytest.raises(LeaseLost):
            await sessions.hold_lease(db, HERE)


async def test_a_coordinator_does_not_come_back_while_its_sessions_are_taken(pool: Pool[Record]) -> None:
    await pool.execute("update coordinators set lease_expires_at = now() - interval '1 s'")
    await add_session(pool, coordinator=HERE)
    async with pool.acquire() as db, db.transaction():
        (silent,) = await sessions.find_silent(db, 10)
        assert await sessions.still_silent(db, silent)
        with pytest.raises(LockNotAvailableError):
            await pool.execute(RENEWAL)


async def test_a_session_under_which_a_job_starts_is_not_lost_before_the_commit(pool: Pool[Record]) -> None:
    session_id = await add_session(pool, coordinator=HERE)
    async with pool.acquire() as db, db.transaction():
        assert (await sessions.states(db, {session_id}, keep=True)).keys() == {session_id}
        with pytest.raises(LockNotAvailableError):
            await pool.execute(CHANGE)


async def test_a_session_that_is_being_written_is_left_out_where_it_is_to_be_kept(pool: Pool[Record]) -> None:
    session_id = await add_session(pool, coordinator=HERE)
    async with pool.acquire() as writer, writer.transaction():
        await sessions.lose(writer, session_id, heard_s=1)
        async with pool.acquire() as db, db.transaction():
            assert await sessions.states(db, {session_id}, keep=True) == {}
            assert not (await sessions.states(db, {session_id}))[session_id].lost
