"""What jobs have left is gone, whatever it is, and nothing that was not theirs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import subprocess
from pathlib import Path

import pytest

from kici.agent import mounts, trash, workspace
from kici.agent.trash import Trash
from kici.agent.workspace import Owner
from tests.support.services import running

IS_ROOT = os.geteuid() == 0
OWNER = Owner(60_997, 60_997) if IS_ROOT else None
as_root = pytest.mark.skipif(not IS_ROOT, reason="only root may mount, or set such flags")


async def emptied(work_dir: Path) -> Trash:
    service = Trash(work_dir)
    async with asyncio.timeout(60):
        await service.run_once()
    return service


def nothing_left(work_dir: Path) -> bool:
    return os.listdir(work_dir / trash.NAME) == [] and list(work_dir.glob("slot-*/*")) == []


async def test_odd_names_kinds_modes_and_depths_are_removed_and_links_not_followed(base: Path) -> None:
    outside = base / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    with workspace.opened(base, 0, OWNER) as space:
        (space.src / "to-outside").symlink_to(outside)
        os.link(outside / "kept", space.src / "hard-link") if IS_ROOT else None
        (space.src / "two\nlines").mkdir()
        (space.src / "two\nlines" / "\udcff").touch()
        os.mkfifo(space.src / "fifo")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(space.tmp / "s"))
        listener.close()
        with (space.src / "sparse").open("wb") as sparse:
            sparse.truncate(2**40)
        (space.src / "read-only").mkdir()
        (space.src / "read-only" / "file").touch(mode=0)
        (space.src / "read-only").chmod(0o500)
        (space.src / "closed").mkdir(mode=0)
        here = os.open(space.src, os.O_RDONLY)
        for _ in range(3_000):  # deeper than a path is long, than Python recurses, than descriptors are given
            os.mkdir("deep", dir_fd=here)
            below = os.open("deep", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(here)
        space.root.chmod(0o500)
    assert (await emptied(base)).left == {}
    assert nothing_left(base)
    assert (outside / "kept").read_text() == "kept"


@as_root
async def test_files_of_other_users_and_files_that_were_made_immutable_are_removed(base: Path) -> None:
    with workspace.opened(base, 0, OWNER) as space:
        for name, uid in (("of-a-range", 231_072), ("of-root", 0)):
            (space.src / name).mkdir()
            (space.src / name / "file").touch()
            os.chown(space.src / name / "file", uid, uid)
            os.chown(space.src / name, uid, uid)
        immutable = space.src / "immutable"
        immutable.mkdir()
        (immutable / "file").touch()
        (space.src / "log").touch()
        try:
            for path, flag in ((immutable / "file", 0x10), (immutable, 0x10), (space.src / "log", 0x20)):
                _set_flag(path, flag)
            _set_flag(space.root, 0x10)
        except OSError:
            pytest.skip("this file system has no immutable flag")
    assert (await emptied(base)).left == {}
    assert nothing_left(base)


@as_root
async def test_a_mount_that_a_job_has_left_is_taken_away_and_never_removed_through(base: Path) -> None:
    outside = base / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    with workspace.opened(base, 0, OWNER) as space:
        for name in ("mo unt", "again"):
            (space.src / name).mkdir()
            subprocess.run(["mount", "--bind", outside, space.src / name], check=True)
        subprocess.run(["mount", "--bind", outside, space.src / "again"], check=True)
        (space.src / "file").touch()
        subprocess.run(["mount", "--bind", outside / "kept", space.src / "file"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", space.root], check=True)
    assert mounts.below(base) == []
    assert (await emptied(base)).left == {}
    assert nothing_left(base)
    assert (outside / "kept").exists()


@as_root
async def test_a_mount_that_cannot_be_taken_away_is_told_with_its_path_and_not_entered(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = base / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    monkeypatch.setattr(mounts, "_unmount", lambda _point: False)
    with workspace.opened(base, 0, OWNER) as space:
        (space.src / "here").mkdir()
        subprocess.run(["mount", "--bind", outside, space.src / "here"], check=True)
        (space.src / "other").touch()
    try:
        (path, reason), *others = (await emptied(base)).left.items()
        assert path.startswith(f"{base}/{trash.NAME}/")
        assert reason == "'here': Device or resource busy"
        assert others == []
        assert (outside / "kept").exists()
        assert list(base.glob(f"{trash.NAME}/*/other")) == []
    finally:
        monkeypatch.undo()
        assert mounts.take_away(base) == []
    assert (await emptied(base)).left == {}


@as_root
async def test_a_mount_over_the_trash_itself_is_taken_away_first(base: Path) -> None:
    outside = base / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (base / trash.NAME).mkdir()
    with workspace.opened(base, 0, OWNER):
        subprocess.run(["mount", "--bind", outside, base / trash.NAME], check=True)
    assert (await emptied(base)).left == {}
    assert nothing_left(base)
    assert (outside / "kept").exists()


async def test_a_link_in_the_place_of_a_slots_directory_leads_nowhere(base: Path) -> None:
    outside = base / "outside"
    (outside / "job").mkdir(parents=True)
    work_dir = base / "work"
    work_dir.mkdir()
    (work_dir / "slot-0").symlink_to(outside)
    trash.throw(work_dir, work_dir / "slot-0" / "job")
    assert (outside / "job").exists()
    with workspace.claim(work_dir):
        assert not (work_dir / "slot-0").is_symlink()
    assert (await emptied(work_dir)).left == {}
    assert (outside / "job").exists()


async def test_the_next_job_does_not_wait_for_the_files_of_the_one_before(base: Path) -> None:
    with workspace.opened(base, 0, OWNER) as space:
        for number in range(2_000):
            (space.src / str(number)).touch()
    with workspace.opened(base, 0, OWNER) as again:
        assert not space.root.exists()
        assert sum(1 for _ in (base / trash.NAME).glob("*/src/*")) == 2_000
        service = Trash(base)
        async with running(service), asyncio.timeout(60):
            await service.settle(60)
        assert nothing_left(base) is False
        assert os.listdir(base / trash.NAME) == []
        assert again.src.exists()


async def test_what_a_killed_agent_left_in_the_trash_is_removed_by_the_next(base: Path) -> None:
    with workspace.claim(base / "work"):
        (base / "work/slot-0/job-1-0000/src").mkdir(parents=True)
    with workspace.claim(base / "work"):
        pass  # and killed before the trash was emptied
    assert os.listdir(base / "work" / trash.NAME)
    with workspace.claim(base / "work"):
        assert (await emptied(base / "work")).left == {}
    assert os.listdir(base / "work" / trash.NAME) == []


async def test_the_removal_ends_with_its_service(base: Path) -> None:
    with workspace.opened(base, 0, OWNER) as space:
        for number in range(20_000):
            (space.src / str(number)).touch()
    service = Trash(base)
    removal = asyncio.create_task(service.run_once())
    async with asyncio.timeout(20):
        while not (children := _removers(base)):
            await asyncio.sleep(0)
    removal.cancel()
    with pytest.raises(asyncio.CancelledError):
        await removal
    assert _removers(base) == []
    assert children


def _removers(base: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{base}/{trash.NAME}".encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _set_flag(path: Path, flag: int) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flags = struct.unpack("i", fcntl.ioctl(descriptor, 0x80086601, b"\0" * 4))[0]
        fcntl.ioctl(descriptor, 0x40086602, struct.pack("i", flags | flag))
    finally:
        os.close(descriptor)
