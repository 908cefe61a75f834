"""Artifacts and cache entries on their way between an agent and the orchestrator, and what can happen there."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from asyncpg import Pool, Record

from kici.agent import artifacts, caches
from kici.agent.errors import TransferFailed
from kici.agent.job_api import JobApi
from kici.orchestrator.caches.artifact_limits import Limits
from kici.orchestrator.errors import Unavailable
from kici.orchestrator.objects.directory_objects import DirectoryObjects
from tests.support import rows
from tests.support.agent_api import agent_api
from tests.support.api_server import Parts, serve
from tests.support.cutter import Cutter
from tests.support.relay import port_of
from tests.support.transfers import DATA, PART, read, stream


@pytest.fixture
async def cutter(parts: Parts) -> AsyncIterator[Cutter]:
    async with Cutter(port_of(parts.url)) as between:
        yield between


@pytest.fixture
def api(parts: Parts, job: rows.Job, cutter: Cutter) -> JobApi:
    """An agent behind a network that can be cut."""
    return agent_api(parts, job, url=cutter.url)


async def test_a_connection_that_is_cut_in_the_middle_of_parts_costs_only_those_parts(
    api: JobApi, cutter: Cutter
) -> None:
    cutter.up = 3_000_000
    assert await caches.save(api, "k", stream(DATA)) == ""
    cutter.down = 5_000_000
    assert await read(api) == DATA
    assert cutter.cuts == 2


@pytest.mark.parametrize("question", [b"/uploads?", b"/parts/1", b"/complete?"])
async def test_an_answer_that_is_lost_is_asked_for_again_and_nothing_is_kept_twice(
    pool: Pool[Record], api: JobApi, cutter: Cutter, question: bytes
) -> None:
    cutter.unanswered = question
    await artifacts.upload(api, "wheel", stream(DATA))
    assert cutter.cuts == 1
    assert b"".join([piece async for piece in artifacts.download(api, "wheel")]) == DATA
    assert await pool.fetchval("select count(*) from uploads where state = 'published'") == 1


async def test_the_restart_of_the_orchestrator_between_two_parts_is_a_pause(
    pool: Pool[Record], database_url: str, tmp_path: Path, job: rows.Job, cutter: Cutter, api: JobApi
) -> None:
    """The first one is left standing, unreachable; what counts is that the second knows nothing but the database."""

    async def restarted(url: str) -> AsyncIterator[bytes]:
        sent = 0
        async for piece in stream(DATA):
            yield piece
            sent += len(piece)
            if sent >= 2 * PART > sent - len(piece):
                cutter.target, cutter.up = port_of(url), 0

    async with serve(pool, database_url, tmp_path, tokens=False) as second:
        assert await caches.save(api, "k", restarted(second.url)) == ""
        assert cutter.cuts == 1
        assert await read(api) == DATA


async def test_an_attempt_that_is_over_in_the_middle_is_told_why_and_leaves_nothing_to_find(
    pool: Pool[Record], parts: Parts, job: rows.Job
) -> None:
    async def overtaken() -> AsyncIterator[bytes]:
        yield b"x" * PART
        await pool.execute("update execution_jobs set attempt = 2")
        yield b"x"

    with pytest.raises(TransferFailed, match="attempt 1 of this job is over"):
        await caches.save(agent_api(parts, job), "k", overtaken())
    assert await pool.fetchval("select count(*) from caches") == 0


async def test_an_artifact_for_which_there_is_no_room_is_refused_in_the_middle_with_a_sentence_for_the_step(
    pool: Pool[Record], parts: Parts, job: rows.Job
) -> None:
    await pool.execute(
        """
        insert into artifacts (run_id, job_id, attempt, name, object_key, size_bytes, sha256, repository)
        values (gen_random_uuid(), gen_random_uuid(), 1, 'old', 'o', $1, '', 'local/demo')
        """,
        Limits().quota_bytes - 2 * PART,
    )
    api = agent_api(parts, job)
    with pytest.raises(
        TransferFailed, match=r"'wheel'.* the artifacts of local/demo may take 107,374,182,400 bytes, and"
    ):
        await artifacts.upload(api, "wheel", stream(b"x" * (2 * PART + 1)))
    assert await pool.fetchval("select state from uploads") == "over"
    await pool.execute("delete from uploads")
    await artifacts.upload(api, "wheel", stream(b"x" * 2 * PART))
    with pytest.raises(TransferFailed, match="and take 107,374,182,400: room comes when older ones expire; operators"):
        await artifacts.upload(api, "other", stream(b"x"))


async def test_of_two_that_save_one_key_at_once_one_wins_and_the_other_is_told(parts: Parts, job: rows.Job) -> None:
    one, other = agent_api(parts, job), agent_api(parts, job)
    both = asyncio.Barrier(2)

    async def together(data: bytes) -> AsyncIterator[bytes]:
        yield data
        async with asyncio.timeout(20):
            await both.wait()

    said = await asyncio.gather(caches.save(one, "k", together(b"one")), caches.save(other, "k", together(b"other")))
    assert sorted(said) == ["", "there is an entry of that key already"]
    assert await read(one) == (b"one" if said[0] == "" else b"other")


async def test_while_the_object_store_is_down_the_agent_waits_and_then_goes_on(
    parts: Parts, job: rows.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = {"put": 2, "list": 1, "read": 1}
    put, listed, reading = DirectoryObjects.put, DirectoryObjects.list, DirectoryObjects.read

    def fails(what: str) -> None:
        if down[what]:
            down[what] -= 1
            raise Unavailable("the object store cannot be used now")

    async def put_or_not(self: DirectoryObjects, key: str, data: AsyncIterator[bytes], *, synced: bool) -> None:
        fails("put")
        await put(self, key, data, synced=synced)

    async def list_or_not(self: DirectoryObjects, prefix: str) -> AsyncIterator[object]:
        fails("list")
        async for entry in listed(self, prefix):
            yield entry

    async def read_or_not(self: DirectoryObjects, key: str) -> AsyncIterator[bytes]:
        fails("read")
        async for piece in reading(self, key):
            yield piece

    monkeypatch.setattr(DirectoryObjects, "put", put_or_not)
    monkeypatch.setattr(DirectoryObjects, "list", list_or_not)
    monkeypatch.setattr(DirectoryObjects, "read", read_or_not)
    api = agent_api(parts, job)
    assert await caches.save(api, "k", stream(b"x" * (PART + 1))) == ""
    assert await read(api) == b"x" * (PART + 1)
    assert down == {"put": 0, "list": 0, "read": 0}


async def test_an_entry_that_makes_room_is_read_to_its_end(pool: Pool[Record], parts: Parts, job: rows.Job) -> None:
    api = agent_api(parts, job)
    await caches.save(api, "k", stream(DATA))
    found = await caches.fetch(api, "k", ())
    assert found
    await pool.execute("update caches set state = 'gone'")
    assert b"".join([piece async for piece in found[1]]) == DATA


async def test_what_a_refused_upload_still_sends_can_be_read_by_its_caller(parts: Parts, job: rows.Job) -> None:
    """The runner sends to the end whatever happens: somebody must take it."""
    rest = stream(bytes(90_000_000))
    with pytest.raises(TransferFailed, match="larger than 20,000,000 bytes"):
        await caches.save(agent_api(parts, job), "big", rest)
    assert len([piece async for piece in rest]) > 10


async def test_an_agent_holds_three_parts_at_most(parts: Parts, job: rows.Job) -> None:
    taken: list[int] = []

    async def watched() -> AsyncIterator[bytes]:
        sent = 0
        async for piece in stream(bytes(19_000_000)):
            yield piece
            sent += len(piece)
            taken.append(sent - sum([entry.size async for entry in parts.objects.list("caches")]))

    assert await caches.save(agent_api(parts, job), "k", watched()) == ""
    assert max(taken) <= 3 * PART


async def test_a_stream_of_tiny_pieces_takes_no_more_memory_than_its_bytes(parts: Parts, job: rows.Job) -> None:
    pieces, size = 200_000, 4
    api = agent_api(parts, job)
    held = 0

    async def tiny() -> AsyncIterator[bytes]:
        nonlocal held
        before, _ = tracemalloc.get_traced_memory()
        for number in range(pieces):
            yield number.to_bytes(size, "big")
        held = tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    try:
        assert await caches.save(api, "k", tiny()) == ""
    finally:
        tracemalloc.stop()
    assert pieces * size <= held < 2 * pieces * size  # kept one by one: eleven times
    assert await read(api) == b"".join(number.to_bytes(size, "big") for number in range(pieces))


async def test_entries_of_versions_before_parts_are_found_and_read(
    pool: Pool[Record], parts: Parts, job: rows.Job
) -> None:
    api = agent_api(parts, job)
    await caches.save(api, "k", stream(DATA))
    await parts.objects.put("caches/old", DATA)
    await pool.execute("update caches set part_bytes = null, object_key = 'caches/old'")
    assert await read(api) == DATA
    await parts.objects.put("caches/old", DATA[:-1] + b"!")
    with pytest.raises(TransferFailed, match="damaged in the store, so the entry was removed"):
        await read(api)
