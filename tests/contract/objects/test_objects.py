"""What `objects.contract` promises, over every store that can run here."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from kici.orchestrator.objects.contract import InvalidKey, ObjectExists, ObjectNotFound, Objects
from kici.orchestrator.objects.obstore_objects import ObstoreObjects, open_objects
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


def test_a_store_without_its_bucket_is_refused() -> None:
    with pytest.raises(SettingsError, match="KICI_STORAGE_BUCKET"):
        open_objects(Settings(storage_type="s3"))
    with pytest.raises(SettingsError, match="floppy"):
        open_objects(Settings(storage_type="floppy"))
