"""The routes of caches, and what the agent does with them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator

import httpx
import pytest
from asyncpg import Pool, Record
from click.testing import CliRunner, Result

from kici.admin.main import program
from kici.agent import caches
from kici.agent.errors import TransferFailed
from kici.agent.job_api import JobApi
from kici.orchestrator.identity.tokens import digest
from tests.support import rows
from tests.support.agent_api import agent_api
from tests.support.api_server import TOKENS, Parts, client

KEY = "uv linux/3.11 ä%&"


async def stream(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 100_000):
        yield data[at : at + 100_000]


async def fetched(api: JobApi, key: str, *restore: str) -> tuple[str, bytes] | None:
    found = await caches.fetch(api, key, restore)
    return None if found is None else (found[0], b"".join([piece async for piece in found[1]]))


async def test_an_agent_saves_and_fetches_byte_for_byte(parts: Parts, job: rows.Job) -> None:
    api, data = agent_api(parts, job), os.urandom(12_000_000)
    assert await fetched(api, KEY, "uv") is None
    assert await caches.save(api, KEY, stream(data)) == ""
    assert await fetched(api, KEY) == (KEY, data)
    assert await fetched(api, "uv mac", "pip ", "uv linux/") == (KEY, data)
    assert await caches.save(api, "empty", stream(b"")) == ""
    assert await fetched(api, "empty") == ("empty", b"")


async def test_of_a_key_that_exists_the_data_is_not_even_begun(parts: Parts, job: rows.Job) -> None:
    api = agent_api(parts, job)
    await caches.save(api, KEY, stream(b"first"))
    other = stream(b"other")
    assert await caches.save(api, KEY, other) == "there is an entry of that key already"
    assert [piece async for piece in other] == [b"other"]
    assert await fetched(api, KEY) == (KEY, b"first")


async def test_a_branch_finds_what_the_default_branch_has_saved_and_not_the_other_way(
    parts: Parts, pool: Pool[Record], admin: httpx.AsyncClient, job: rows.Job
) -> None:
    token = "kjt_" + "8" * 64
    run_id = await rows.add_run(pool, event={"type": "push", "branch": "feature"})
    branch = await rows.add_job(pool, run_id)
    await rows.add_queue_row(pool, branch, token_hash=digest(token))
    main_api, branch_api = agent_api(parts, job), agent_api(parts, branch, token=token)
    await caches.save(main_api, KEY, stream(b"main's"))
    assert await fetched(branch_api, KEY) == (KEY, b"main's")
    assert await caches.save(branch_api, KEY, stream(b"the branch's")) == ""
    assert await caches.save(branch_api, "new", stream(b"new")) == ""
    assert await fetched(branch_api, KEY) == (KEY, b"the branch's")
    assert await fetched(main_api, KEY) == (KEY, b"main's")
    assert await fetched(main_api, "new", "n") is None
    listed = (await admin.get("/api/v1/admin/caches")).json()["caches"]
    assert sorted((one["scope"], one["key"]) for one in listed) == [
        ("", KEY),
        ("heads/feature", "new"),
        ("heads/feature", KEY),
    ]


async def test_what_is_refused_is_said_in_the_orchestrators_words(parts: Parts, job: rows.Job) -> None:
    with pytest.raises(TransferFailed, match="not valid, or its job has ended"):
        await caches.fetch(agent_api(parts, job, token="kjt_" + "0" * 64), KEY, ())
    with pytest.raises(TransferFailed, match="attempt 2 is over"):
        await caches.save(agent_api(parts, job, attempt=2), KEY, stream(b"x"))
    with pytest.raises(TransferFailed, match="no key of a cache"):
        await caches.save(agent_api(parts, job), "a\nb", stream(b"x"))
    with pytest.raises(TransferFailed, match="larger than 20,000,000 bytes"):
        await caches.save(agent_api(parts, job), "big", stream(bytes(20_000_001)))


async def test_a_save_that_breaks_off_leaves_nothing_to_find(parts: Parts, job: rows.Job) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 6_000_000
        raise OSError("the runner is gone")

    api = agent_api(parts, job)
    with pytest.raises(OSError, match="the runner is gone"):
        await caches.save(api, KEY, broken())
    assert await fetched(api, KEY, "uv") is None
    assert await caches.save(api, KEY, stream(b"whole")) == ""


async def test_an_entry_whose_object_is_lost_is_a_miss(pool: Pool[Record], parts: Parts, job: rows.Job) -> None:
    api = agent_api(parts, job)
    await caches.save(api, KEY, stream(b"x"))
    await parts.objects.delete(await pool.fetchval("select object_key || '/0' from caches"))
    assert await fetched(api, KEY) is None
    assert await caches.save(api, KEY, stream(b"again")) == ""


@pytest.mark.parametrize("damaged", [b"evil", b"goo", b"good and more"])
async def test_a_damaged_entry_is_no_miss_and_is_removed_so_that_the_next_save_is_kept(
    pool: Pool[Record], parts: Parts, job: rows.Job, damaged: bytes
) -> None:
    api = agent_api(parts, job)
    await caches.save(api, KEY, stream(b"good"))
    await parts.objects.put(await pool.fetchval("select object_key || '/0' from caches"), damaged)
    with pytest.raises(TransferFailed, match="damaged in the store, so the entry was removed"):
        await fetched(api, KEY)
    assert await fetched(api, KEY) is None
    assert await caches.save(api, KEY, stream(b"good")) == ""
    assert await fetched(api, KEY) == (KEY, b"good")


async def test_a_sound_entry_stays_whatever_an_agent_says_and_that_of_others_is_not_even_read(
    pool: Pool[Record], parts: Parts, job: rows.Job
) -> None:
    api = agent_api(parts, job)
    await caches.save(api, KEY, stream(b"good"))
    entry = str(await pool.fetchval("select id from caches"))
    sound = await api.repeated("POST", "caches/check", "", params={"entry": entry})
    assert json.loads(sound.content) == {"damaged": False}
    await pool.execute("update caches set repository = 'other/one'")
    await parts.objects.put(await pool.fetchval("select object_key || '/0' from caches"), b"evil")
    await api.repeated("POST", "caches/check", "", params={"entry": entry})
    assert await pool.fetchval("select state from caches") == "ready"
    with pytest.raises(TransferFailed, match="cache entry"):
        await api.repeated("POST", "caches/check", "", params={"entry": "x"})


async def test_an_operator_lists_and_deletes_entries(parts: Parts, admin: httpx.AsyncClient, job: rows.Job) -> None:
    api = agent_api(parts, job)
    await caches.save(api, KEY, stream(b"12345"))
    (entry,) = (await admin.get("/api/v1/admin/caches?repo=local/demo")).json()["caches"]
    assert (entry["key"], entry["scope"], entry["sizeBytes"], entry["repository"]) == (KEY, "", 5, "local/demo")
    assert (await admin.get("/api/v1/admin/caches?repo=other/one")).json()["caches"] == []
    async with client(parts.url, TOKENS["developer"]) as developer:
        assert (await developer.delete(f"/api/v1/admin/caches/{entry['id']}")).status_code == 403
    assert (await admin.delete(f"/api/v1/admin/caches/{entry['id']}")).status_code == 204
    assert (await admin.delete(f"/api/v1/admin/caches/{entry['id']}")).status_code == 404
    assert await fetched(api, KEY) is None


async def test_kici_admin_shows_the_entries_and_lets_one_go(
    parts: Parts, admin: httpx.AsyncClient, job: rows.Job
) -> None:
    await caches.save(agent_api(parts, job), KEY, stream(b"x" * 12_345))

    async def run(*arguments: str) -> Result:
        options = ["--url", parts.url, "--token", TOKENS["admin"], "caches", *arguments]
        return await asyncio.to_thread(CliRunner().invoke, program, options, catch_exceptions=False)

    entry = (await run("list", "--repo", "local/demo")).stdout.splitlines()[-1]
    assert f"local/demo  (default branch)  {KEY}  12,345" in entry
    listed = (await run("list", "--json")).stdout
    (told,) = json.loads(listed[listed.index("{\n") :])["caches"]
    assert (await run("delete", told["id"])).stdout.endswith(f"Deleted: {told['id']}\n")
    assert "No job has kept anything." in (await run("list")).stderr
