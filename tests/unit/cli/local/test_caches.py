from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kici.cli.local.caches import Caches, CacheTaken, CacheTooLarge, directory


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


async def found(caches: Caches, key: str, *restore: str) -> tuple[str, bytes] | None:
    entry = await caches.fetch(key, restore)
    return None if entry is None else (entry[0], b"".join([piece async for piece in entry[1]]))


def files(base: Path) -> list[Path]:
    return sorted(path for path in base.rglob("*") if path.is_file())


def used_at(base: Path, when: float, *, made: float | None = None) -> None:
    """The newest file was made and found then."""
    newest = max(files(base), key=lambda path: path.stat().st_mtime_ns)
    os.utime(newest, (when, when if made is None else made))


@pytest.fixture
def caches(tmp_path: Path) -> Caches:
    return Caches(tmp_path / "caches", tmp_path / "app", "")


async def test_nothing_is_found_where_nothing_was_saved(caches: Caches, tmp_path: Path) -> None:
    assert await found(caches, "a", "") is None
    assert not (tmp_path / "caches").exists()


async def test_what_was_saved_is_found_by_its_key_and_never_changes(caches: Caches) -> None:
    await caches.save("uv/linux ü", pieces(b"one\n", b"\0two"))
    with pytest.raises(CacheTaken):
        await caches.save("uv/linux ü", pieces(b"three"))
    assert await found(caches, "uv/linux ü") == ("uv/linux ü", b"one\n\0two")
    assert await found(caches, "uv/linux") is None


async def test_the_first_prefix_that_finds_one_gives_its_newest(caches: Caches, tmp_path: Path) -> None:
    for number, key in enumerate(["uv-a-1", "uv-a-2", "uv-b-1"]):
        await caches.save(key, pieces(key.encode()))
        used_at(tmp_path / "caches", 1_000_000 - number * 100)
    assert await found(caches, "uv-a-3", "none-", "uv-a-", "uv-") == ("uv-a-1", b"uv-a-1")
    assert await found(caches, "uv-b-1", "uv-a-") == ("uv-b-1", b"uv-b-1")


async def test_another_repository_finds_nothing(caches: Caches, tmp_path: Path) -> None:
    await caches.save("a", pieces(b"1"))
    assert await found(Caches(tmp_path / "caches", tmp_path / "other", ""), "a", "") is None
    assert await found(Caches(tmp_path / "caches", tmp_path / "app", "boxed"), "a", "") is None


async def test_a_save_that_breaks_off_leaves_nothing(caches: Caches, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise OSError("the runner is gone")

    with pytest.raises(OSError, match="gone"):
        await caches.save("a", broken())
    assert files(tmp_path / "caches") == []


async def test_an_entry_over_the_limit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    caches = Caches(tmp_path / "caches", tmp_path / "app", "", max_bytes=100)
    with pytest.raises(CacheTooLarge, match="more than 100 bytes"):
        await caches.save("a", pieces(b"x" * 60, b"x" * 60))
    assert files(tmp_path / "caches") == []


async def test_of_two_that_save_one_key_at_once_the_first_to_end_wins(caches: Caches, tmp_path: Path) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"slow"
        await caches.save("a", pieces(b"fast"))

    await caches.save("a", slow())
    assert await found(caches, "a") == ("a", b"fast")
    assert len(files(tmp_path / "caches")) == 1


async def test_what_was_not_found_for_the_longest_time_makes_room(tmp_path: Path) -> None:
    base = tmp_path / "caches"
    caches = Caches(base, tmp_path / "app", "", max_bytes=250)
    for number, key in enumerate("abc"):
        await caches.save(key, pieces(b"x" * 70))
        used_at(base, 1_000_000 + number)
    assert await found(caches, "a")  # counts as used now; it is still the oldest
    await caches.save("d", pieces(b"x" * 70))
    assert await found(caches, "b") is None
    assert [await found(caches, key) is not None for key in "acd"] == [True, True, True]
    assert await found(caches, "", "a", "") == ("a", b"x" * 70)


async def test_what_a_killed_run_has_left_goes(caches: Caches, tmp_path: Path) -> None:
    await caches.save("a", pieces(b"1"))
    left, fresh = (files(tmp_path / "caches")[0].parent / name for name in (".left", ".fresh"))
    left.write_bytes(b"half")
    fresh.write_bytes(b"half")
    os.utime(left, (1, 1))
    await caches.save("b", pieces(b"1"))
    assert not left.exists()
    assert fresh.exists()


def test_the_directory_is_the_users_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert directory() == tmp_path / ".cache" / "kici" / "caches"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert directory() == Path("/elsewhere/kici/caches")
