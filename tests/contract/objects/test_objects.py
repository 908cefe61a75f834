"""What `objects.contract` promises, over every store that can run here."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from msgspec import structs
from obstore.store import MemoryStore

from kici.orchestrator.caches.parts import Parts
from kici.orchestrator.errors import Unavailable
from kici.orchestrator.objects.contract import InvalidKey, ObjectExists, ObjectNotFound, Objects
from kici.orchestrator.objects.object_file import Reading, Writing
from kici.orchestrator.objects.obstore_objects import ObstoreObjects
from kici.orchestrator.objects.open_objects import open_objects
from kici.orchestrator.settings import Settings, SettingsError
from tests.support.seaweedfs import Served, seaweedfs

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with seaweedfs() as served:
        yield served


@pytest.fixture
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A place of its own in the bucket of a real S3 server."""
    served: Served = request.getfixturevalue("server")
    for name, value in served.environment.items():
        monkeypatch.setenv(name, value)
    return Settings(
        storage_type="s3",
        storage_bucket=served.bucket,
        storage_region="us-east-1",
        storage_endpoint=served.endpoint,
        storage_prefix=f"test-{uuid.uuid4().hex}",
    )


@pytest.fixture(params=["filesystem", "memory", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "memory":
        return ObstoreObjects(MemoryStore())
    if request.param == "s3":
        return open_objects(request.getfixturevalue("bucket"))
    return open_objects(Settings(storage_fs_path=tmp_path / "objects"))


async def stream(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def collect(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


async def test_what_was_put_can_be_got(objects: Objects) -> None:
    await objects.put("a/b", b"one")
    assert await objects.get("a/b") == b"one"
    assert await objects.size("a/b") == 3
    await objects.put("a/b", b"other")
    assert await objects.get("a/b") == b"other"


@pytest.mark.parametrize("size", [0, 1, 6 * MIB, 17 * MIB + 1])
async def test_a_stream_of_any_size_comes_back_the_same(objects: Objects, size: int) -> None:
    data = os.urandom(size)
    await objects.put("big", stream(*(data[at : at + MIB] for at in range(0, size, MIB))))
    assert await collect(objects.read("big")) == data
    assert await objects.size("big") == size


@pytest.mark.parametrize("size", [0, 6 * MIB, 17 * MIB + 1])
async def test_bytes_of_any_size_come_back_the_same_however_large_the_pieces(objects: Objects, size: int) -> None:
    data = os.urandom(size)
    await objects.put("big", data, synced=False)
    pieces = [piece async for piece in objects.read("big")]
    assert b"".join(pieces) == data
    if size:
        assert await collect(objects.read("big", start=MIB - 1, end=2 * MIB + 1)) == data[MIB - 1 : 2 * MIB + 1]


async def test_a_part_can_be_read(objects: Objects) -> None:
    await objects.put("k", b"0123456789")
    assert await collect(objects.read("k", start=2, end=5)) == b"234"
    assert await collect(objects.read("k", start=7)) == b"789"
    assert await collect(objects.read("k", start=3, end=3)) == b""


async def test_a_missing_object_is_told_as_such(objects: Objects) -> None:
    assert await objects.size("none") is None
    with pytest.raises(ObjectNotFound):
        await objects.get("none")
    with pytest.raises(ObjectNotFound):
        await collect(objects.read("none"))


async def test_what_only_begins_other_keys_is_no_object(objects: Objects) -> None:
    await objects.put("a/b/c", b"x")
    assert await objects.size("a/b") is None
    with pytest.raises(ObjectNotFound):
        await objects.get("a/b")
    assert [entry async for entry in objects.list("none")] == []


async def test_a_deleted_object_is_gone_and_may_be_deleted_again(objects: Objects) -> None:
    await objects.put("k", b"x")
    await objects.delete("k")
    await objects.delete("k")
    assert await objects.size("k") is None


async def test_of_many_creators_one_wins(objects: Objects) -> None:
    async def create(number: int) -> bool:
        try:
            await objects.put("once", stream(str(number).encode()), create=True)
        except ObjectExists:
            return False
        return True

    won = await asyncio.gather(*(create(number) for number in range(12)))
    assert won.count(True) == 1
    assert await objects.get("once") == str(won.index(True)).encode()


async def test_a_stream_that_breaks_leaves_nothing_visible(objects: Objects) -> None:
    class Broken(Exception):
        pass

    async def broken() -> AsyncIterator[bytes]:
        for _ in range(7):
            yield b"x" * MIB
        raise Broken

    await objects.put("kept", b"before")
    for key in ("fresh", "kept"):
        with pytest.raises(Broken):
            await objects.put(key, broken())
    assert await objects.size("fresh") is None
    assert await objects.get("kept") == b"before"
    assert [entry.key async for entry in objects.list("fresh")] == []


async def test_listing_goes_by_whole_segments(objects: Objects) -> None:
    for key in ("runs/1/a", "runs/1/b/c", "runs/10/d", "other"):
        await objects.put(key, b"xy")
    assert sorted([(entry.key, entry.size) async for entry in objects.list("runs/1")]) == [
        ("runs/1/a", 2),
        ("runs/1/b/c", 2),
    ]


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "../up", "a/../b", "a//b", "a/.", "a b", "a\0b", "a#1", "é", "a" * 300]
)
async def test_a_key_that_could_lead_elsewhere_is_refused(objects: Objects, key: str) -> None:
    with pytest.raises(InvalidKey):
        await objects.put(key, b"x")
    with pytest.raises(InvalidKey):
        await objects.get(key)
    with pytest.raises(InvalidKey):
        await collect(objects.read(key))
    with pytest.raises(InvalidKey):
        await objects.delete(key)


async def test_what_a_cancelled_upload_left_is_invisible_and_swept(tmp_path: Path) -> None:
    objects = open_objects(Settings(storage_fs_path=tmp_path))
    sent = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(12):
            yield b"x" * MIB
        sent.set()
        await asyncio.Event().wait()

    upload = asyncio.ensure_future(objects.put("logs/one", endless()))
    async with asyncio.timeout(20):
        await sent.wait()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert await objects.size("logs/one") is None
    await objects.put("logs/two", b"x")
    await objects.sweep(older_than=timedelta(seconds=-60))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["two"]


async def test_of_a_cancelled_upload_to_a_bucket_nothing_is_seen_and_the_next_one_is(bucket: Settings) -> None:
    objects = open_objects(bucket)
    sent = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(12):
            yield b"x" * MIB
        sent.set()
        await asyncio.Event().wait()

    upload = asyncio.ensure_future(objects.put("caches/one", endless()))
    async with asyncio.timeout(20):
        await sent.wait()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert await objects.size("caches/one") is None
    assert [entry.key async for entry in objects.list("caches")] == []
    await objects.put("caches/one", stream(b"whole"))
    assert await objects.get("caches/one") == b"whole"


MINUTE = timedelta(minutes=1)


async def test_without_credentials_a_signed_address_puts_and_gets_its_object(bucket: Settings) -> None:
    objects = open_objects(bucket)
    up, down = await objects.sign("PUT", "a/0", MINUTE), await objects.sign("GET", "a/0", MINUTE)
    assert up
    assert down
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.put(up, content=b"one")).is_success
        assert await objects.get("a/0") == b"one"
        assert (await client.get(down)).content == b"one"
        part = await client.get(down, headers={"range": "bytes=1-"})
        assert (part.status_code, part.content) == (206, b"ne")


async def test_a_signed_address_is_for_one_method_one_key_and_its_time(bucket: Settings) -> None:
    objects = open_objects(bucket)
    for key in ("a/0", "a/1"):
        await objects.put(key, b"kept")
    down, brief = await objects.sign("GET", "a/0", MINUTE), await objects.sign("GET", "a/0", timedelta(seconds=1))
    assert down
    assert brief
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.put(down, content=b"evil")).status_code == 403
        assert (await client.delete(down)).status_code == 403
        assert (await client.get(down.replace("/a/0?", "/a/1?"))).status_code == 403
        assert (await client.get(down.replace("X-Amz-Expires=60", "X-Amz-Expires=600"))).status_code == 403
        assert (await client.get(down.partition("?")[0])).status_code == 403
        async with asyncio.timeout(20):
            while (await client.get(brief)).status_code != 403:
                pass
    assert [await objects.get(key) for key in ("a/0", "a/1")] == [b"kept"] * 2


async def test_signed_addresses_are_of_the_server_that_others_reach(bucket: Settings) -> None:
    external = structs.replace(bucket, storage_external_endpoint="https://objects.example:8443")
    url = await open_objects(external).sign("PUT", "a/0", MINUTE)
    assert url
    assert url.startswith(f"https://objects.example:8443/{bucket.storage_bucket}/{bucket.storage_prefix}/a/0?")
    await open_objects(external).put("a/0", b"one")
    assert await open_objects(bucket).get("a/0") == b"one"


async def test_what_only_we_reach_has_no_signed_addresses(tmp_path: Path) -> None:
    for objects in (ObstoreObjects(MemoryStore()), open_objects(Settings(storage_fs_path=tmp_path))):
        assert await objects.sign("PUT", "a/0", MINUTE) is None
        with pytest.raises(InvalidKey):
            await objects.sign("PUT", "../up", MINUTE)


async def test_nothing_of_an_object_remains_in_a_directory_that_was_deleted(tmp_path: Path) -> None:
    objects = open_objects(Settings(storage_fs_path=tmp_path))
    await asyncio.gather(*(objects.put(f"caches/one/{number}", b"x") for number in range(20)))
    await asyncio.gather(*(objects.delete(f"caches/one/{number}") for number in range(20)))
    assert list(tmp_path.rglob("*")) == []
    await objects.put("caches/one/0", b"again")
    assert await objects.get("caches/one/0") == b"again"


async def test_objects_of_a_directory_that_empties_while_others_are_put_there_are_not_lost(tmp_path: Path) -> None:
    objects = open_objects(Settings(storage_fs_path=tmp_path))

    async def come_and_go(number: int) -> None:
        for _ in range(30):
            await objects.put(f"a/b/c/{number}", b"x")
            await objects.delete(f"a/b/c/{number}")
        await objects.put(f"a/b/c/{number}", b"stays")

    await asyncio.gather(*(come_and_go(number) for number in range(8)))
    assert [await objects.get(f"a/b/c/{number}") for number in range(8)] == [b"stays"] * 8


async def test_a_directory_that_cannot_be_used_is_told_without_its_path(tmp_path: Path) -> None:
    objects = open_objects(Settings(storage_fs_path=tmp_path / "objects"))
    (tmp_path / "objects" / "a").symlink_to("a")  # whoever follows it goes round for ever
    for work in (objects.get, objects.size, objects.delete, lambda key: objects.put(key, b"x")):
        with pytest.raises(Unavailable) as told:
            await work("a/b")
        assert str(tmp_path) not in str(told.value)


async def test_a_directory_that_is_gone_is_not_one_without_objects(tmp_path: Path) -> None:
    objects = open_objects(Settings(storage_fs_path=tmp_path / "objects"))
    (tmp_path / "objects").rmdir()
    for work in (objects.get, objects.size, objects.delete):
        with pytest.raises(Unavailable):
            await work("a/b")
    (tmp_path / "objects").touch()
    with pytest.raises(Unavailable):
        await objects.size("a/b")


def test_a_file_whose_opening_comes_after_its_end_is_not_opened(tmp_path: Path) -> None:
    """A thread may get its turn when whoever has asked was cancelled and has closed it."""
    (tmp_path / "there").write_bytes(b"x")
    before = os.listdir("/proc/self/fd")
    writing, reading = Writing(tmp_path / "made", synced=False), Reading(tmp_path / "there")
    writing.close()
    reading.close()
    writing.begin()
    writing.write([b"x"])
    assert not writing.publish(create=False)
    assert not reading.open()
    assert (reading.now(0, 1), reading.wait(0, 1)) == (None, b"")
    assert os.listdir("/proc/self/fd") == before
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


async def test_a_directory_that_does_not_answer_takes_nobody_elses_threads(tmp_path: Path) -> None:
    objects = open_objects(Settings(storage_fs_path=tmp_path))
    os.mkfifo(tmp_path / "stuck")  # whoever opens it waits for a writer
    reading = [asyncio.create_task(objects.get("stuck")) for _ in range(50)]
    async with asyncio.timeout(20):
        assert await asyncio.gather(*(asyncio.to_thread(os.getpid) for _ in range(50))) == [os.getpid()] * 50
    assert not any(task.done() for task in reading)
    writer = os.open(tmp_path / "stuck", os.O_RDWR)
    async with asyncio.timeout(20):
        await asyncio.gather(*reading, return_exceptions=True)
    os.close(writer)


async def test_below_an_object_of_a_directory_there_is_none_and_none_can_be_put(tmp_path: Path) -> None:
    objects = open_objects(Settings(storage_fs_path=tmp_path))
    await objects.put("a/b", b"x")
    assert await objects.size("a/b/c") is None
    await objects.delete("a/b/c")
    for create in (False, True):
        with pytest.raises(Unavailable):
            await objects.put("a/b/c", b"x", create=create)
    assert await objects.get("a/b") == b"x"


async def test_a_read_that_is_given_up_closes_its_file(tmp_path: Path) -> None:
    objects = open_objects(Settings(storage_fs_path=tmp_path))
    await objects.put("big", bytes(2 * MIB))
    before = os.listdir("/proc/self/fd")
    reading = objects.read("big")
    assert len(await anext(reading)) < 2 * MIB
    assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    await reading.aclose()  # type: ignore[attr-defined]
    assert len(os.listdir("/proc/self/fd")) == len(before)


KILLED = """
import asyncio, json, pathlib, sys
from kici.orchestrator.caches.parts import Parts
from kici.orchestrator.objects.open_objects import open_objects
from kici.orchestrator.settings import Settings

async def piece():
    yield b"x" * 8_000_000

async def send(settings):
    parts = Parts(open_objects(settings))
    for number in range(1000):
        await parts.put("caches/killed", number, piece(), 8_000_000)
        print(number, flush=True)

told = json.loads(sys.argv[1])
asyncio.run(send(Settings(**told, storage_fs_path=pathlib.Path(sys.argv[2]))))
"""


@pytest.mark.parametrize("kind", ["filesystem", "s3"])
async def test_of_a_process_killed_while_it_writes_parts_only_whole_ones_remain_and_can_be_removed(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    fixed = Settings(storage_fs_path=tmp_path)
    settings: Settings = request.getfixturevalue("bucket") if kind == "s3" else fixed
    objects = open_objects(settings)
    names = ("storage_type", "storage_bucket", "storage_region", "storage_endpoint", "storage_prefix")
    told = json.dumps({name: getattr(settings, name) for name in names})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, told, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout
    async with asyncio.timeout(60):
        for _ in range(3):
            assert await process.stdout.readline()
        process.kill()
        await process.wait()
    there = [entry async for entry in objects.list("caches/killed")]
    assert len(there) >= 3
    assert {entry.size for entry in there} == {8_000_000}
    await Parts(objects).remove("caches/killed", 8_000_000)
    await objects.sweep(older_than=timedelta(seconds=-60))
    assert [entry async for entry in objects.list("caches")] == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_store_without_its_bucket_is_refused() -> None:
    with pytest.raises(SettingsError, match="KICI_STORAGE_BUCKET"):
        open_objects(Settings(storage_type="s3"))
    with pytest.raises(SettingsError, match="floppy"):
        open_objects(Settings(storage_type="floppy"))
