"""Archives as the runner makes and unpacks them: what comes back, and what hostile ones cannot do."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import select
import shutil
import stat
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kici.runner import archive, pipes
from kici.runner.archive import scratch
from kici.runner.processes import children
from kici.runner.program import ArtifactFailed

MIB = 1024 * 1024


@pytest.fixture(params=["zstd", "python"])
def compressor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The program, and ours that stands in for it where there is none."""
    found = shutil.which
    if request.param == "zstd":
        if found("zstd") is None:
            pytest.skip("there is no program zstd")
    else:
        monkeypatch.setattr(shutil, "which", lambda name: None if name == "zstd" else found(name))
    return str(request.param)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


async def packed(directory: Path, *members: str) -> bytes:
    source, target = pipes.make()

    async def packing() -> None:
        try:
            await archive.pack(str(directory), members or (".",), target)
        finally:
            os.close(target)

    work = asyncio.create_task(packing())
    data = b""
    while piece := await pipes.read(source):
        data += piece
    os.close(source)
    await work
    return data


async def unpack(data: bytes, directory: Path, *, piece_bytes: int = 100_000) -> bool:
    source, target = pipes.make()

    async def send() -> None:
        try:
            with contextlib.suppress(BrokenPipeError):
                for at in range(0, len(data), piece_bytes):
                    await pipes.write(target, data[at : at + piece_bytes])
        finally:
            os.close(target)

    sending = asyncio.create_task(send())
    try:
        return await archive.unpack(source, str(directory))
    finally:
        os.close(source)
        await sending


def made(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]) -> bytes:
    """An archive as nobody honest makes it."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for member in members:
            info, data = member if isinstance(member, tuple) else (member, b"")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return zstandard.compress(whole.getvalue())


def file(name: str, data: bytes = b"owned", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.mode = mode
    return info, data


def special(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o777
    info.devmajor, info.devminor = 1, 3
    return info


# ── what comes back ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("compressor")
async def test_a_tree_comes_back_as_it_was(source: Path, target: Path) -> None:
    (source / "empty").mkdir()
    (source / "ünï ☃\nnew line").write_text("odd")
    long = "/".join(["d" * 200] * 5)
    (source / long).mkdir(parents=True)
    (source / long / ("f" * 250)).write_text("long")
    (source / os.fsdecode(b"raw\xff")).write_text("bytes")
    (source / "-rf").write_text("option")
    (source / "run").write_text("#!")
    (source / "run").chmod(0o755)
    os.link(source / "run", source / "same")
    os.symlink("/usr/bin/python3", source / "link")
    os.utime(source / "run", ns=(1, 1_600_000_000_123_456_789))
    (source / "closed").mkdir()
    (source / "closed/in").write_text("in")
    (source / "closed").chmod(0o555)
    assert await unpack(await packed(source), target)
    names = sorted(os.fsencode(path.relative_to(source)) for path in source.rglob("*"))
    assert sorted(os.fsencode(path.relative_to(target)) for path in target.rglob("*")) == names
    assert (target / long / ("f" * 250)).read_text() == "long"
    assert (target / "run").stat().st_mtime_ns == 1_600_000_000_123_456_789
    assert (target / "run").stat().st_mode & 0o777 == 0o755
    assert (target / "run").stat().st_ino == (target / "same").stat().st_ino
    assert os.readlink(target / "link") == "/usr/bin/python3"
    assert (target / "closed").stat().st_mode & 0o777 == 0o555


@pytest.mark.usefixtures("compressor")
async def test_a_sparse_file_of_5_gb_travels_as_its_data_and_stays_sparse(source: Path, target: Path) -> None:
    with (source / "disk").open("wb") as disk:
        disk.truncate(5 * 1024**3)
        disk.seek(4 * 1024**3)
        disk.write(b"data")
    data = await packed(source)
    assert len(data) < MIB
    await unpack(data, target)
    status = (target / "disk").stat()
    assert status.st_size == 5 * 1024**3
    assert status.st_blocks * 512 < MIB
    with (target / "disk").open("rb") as disk:
        disk.seek(4 * 1024**3)
        assert disk.read(5) == b"data\0"


async def test_100_000_entries_come_back() -> None:
    memory = Path("/dev/shm")  # a disk makes some thousand files a second
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as base:
        source, target = Path(base, "source"), Path(base, "target")
        target.mkdir()
        for folder in range(100):
            (source / str(folder)).mkdir(parents=True)
            for number in range(1_000):
                os.close(os.open(source / str(folder) / str(number), os.O_CREAT | os.O_WRONLY, 0o644))
        await unpack(await packed(source), target)
        assert sum(len(names) for _, _, names in os.walk(target)) == 100_000


async def test_an_archive_from_before_compression_is_still_read(source: Path, target: Path) -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        tar.addfile(file("old")[0])
    assert await unpack(plain.getvalue(), target, piece_bytes=1)
    assert (target / "old").exists()


async def test_no_data_is_no_archive(target: Path) -> None:
    assert not await unpack(b"", target)


async def test_the_two_compressors_read_each_other(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source / "a").write_bytes(os.urandom(MIB))
    ours = [sys.executable, "-I", "-m", "kici.runner.zstd"]
    if shutil.which("zstd") is None:
        pytest.skip("there is no program zstd")
    by_program = await packed(source)
    monkeypatch.setattr(archive, "_zstd", lambda *options: [*ours, *options])
    by_us = await packed(source)
    await unpack(by_program, target)
    assert (target / "a").read_bytes() == (source / "a").read_bytes()
    monkeypatch.undo()
    (target / "a").unlink()
    await unpack(by_us, target)
    assert (target / "a").read_bytes() == (source / "a").read_bytes()


async def test_what_cannot_be_packed_is_an_error_at_the_end(source: Path) -> None:
    (source / "there").write_text("1")
    with pytest.raises(ArtifactFailed, match="gone"):
        await packed(source, "there", "gone")


# ── attacks ──────────────────────────────────────────────────────────────────────────────────────────────────────────

OUT = "../escaped"
LONG = "d" * 100


@pytest.mark.parametrize(
    "members",
    [
        pytest.param([file(OUT)], id="dot dot"),
        pytest.param([file("a/../../escaped")], id="dot dot inside"),
        pytest.param([special("l", tarfile.SYMTYPE, ".."), file("l/escaped")], id="through a symbolic link"),
        pytest.param([special("l", tarfile.SYMTYPE, OUT), file("l")], id="onto a symbolic link"),
        pytest.param(
            [special("a", tarfile.SYMTYPE, "."), special("a/b", tarfile.SYMTYPE, ".."), file("a/b/escaped")],
            id="through two symbolic links",
        ),
        pytest.param([special("h", tarfile.LNKTYPE, "../victim"), file("h")], id="hard link outside"),
        pytest.param(
            [special("s", tarfile.SYMTYPE, "../victim"), special("h", tarfile.LNKTYPE, "s"), file("h")],
            id="hard link to a symbolic link",
        ),
        pytest.param(
            [file(f"{LONG}/x"), special(f"{LONG}/l", tarfile.SYMTYPE, "../.."), file(f"{LONG}/l/escaped")],
            id="symbolic link behind a long path",
        ),
    ],
)  # fmt: skip
async def test_nothing_outside_is_touched(tmp_path: Path, target: Path, members: list[tarfile.TarInfo]) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    with contextlib.suppress(ArtifactFailed):
        await unpack(made(*members), target)
    assert not (tmp_path / "escaped").exists()
    assert victim.read_text() == "mine"
    assert victim.stat().st_nlink == 1


async def test_an_absolute_path_lands_inside(tmp_path: Path, target: Path) -> None:
    await unpack(made(file(f"{tmp_path}/escaped")), target)
    assert not (tmp_path / "escaped").exists()
    assert (target / str(tmp_path).lstrip("/") / "escaped").read_text() == "owned"


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
async def test_a_device_or_pipe_is_refused(target: Path, kind: bytes) -> None:
    with pytest.raises(ArtifactFailed, match=r"no file|Operation not permitted|Cannot mknod"):
        await unpack(made(file("a"), special("node", kind)), target)


async def test_rights_that_only_root_may_give_are_not_given(target: Path) -> None:
    await unpack(made(file("s", mode=0o6755), file("w", mode=0o777)), target)
    assert (target / "s").stat().st_mode & 0o7000 == 0
    assert (target / "w").stat().st_mode & 0o022 == 0


async def test_of_a_file_and_a_directory_of_one_name_the_last_is_taken_or_all_refused(target: Path) -> None:
    await unpack(made(file("a"), special("a", tarfile.DIRTYPE), file("a/b")), target)
    assert (target / "a/b").read_text() == "owned"
    with pytest.raises(ArtifactFailed, match="tar failed"):
        await unpack(made(file("c/d"), file("c")), target)


@pytest.mark.usefixtures("compressor")
async def test_an_archive_that_is_cut_off_or_garbled_is_refused(source: Path, target: Path) -> None:
    (source / "a").write_bytes(os.urandom(MIB))
    data = await packed(source)
    for broken in (data[:-1], data[: len(data) // 2], data[:4] + b"\xff" * 1_000, b"no archive" * 1_000):
        with pytest.raises(ArtifactFailed, match="failed"):
            await unpack(broken, target)


@pytest.mark.usefixtures("compressor")
async def test_a_bomb_is_stopped_long_before_it_has_unfolded(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 GB of zeros, as a file of its own that tar would write in full."""
    monkeypatch.setattr(archive, "FREE_BYTES", 128 * MIB)
    info = tarfile.TarInfo("bomb")
    info.size = 10 * 1024**3
    data = zstandard.compress(info.tobuf()) + zstandard.compress(bytes(16 * MIB)) * 640  # frames may follow one another
    assert len(data) < 2 * MIB
    with pytest.raises(ArtifactFailed, match="bomb"):
        await unpack(data, target)
    assert sum(path.stat().st_size for path in target.rglob("*")) < archive.FREE_BYTES + 2 * archive.MAX_RATIO * MIB


async def test_what_would_be_refused_as_a_bomb_is_not_made(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "FREE_BYTES", MIB)
    (source / "zeros").write_bytes(bytes(64 * MIB))
    with pytest.raises(ArtifactFailed, match="bomb"):
        await packed(source)


async def test_what_tar_leaves_out_however_much_it_is_fails_nothing(source: Path, target: Path) -> None:
    """It says a line of each: more than is read of what a program says."""
    (source / "kept").write_text("1")
    for number in range(3_000):
        os.mknod(source / f"socket-{number}", stat.S_IFSOCK | 0o600)
    await unpack(await packed(source), target)
    assert [path.name for path in target.iterdir()] == ["kept"]


async def test_a_file_of_holes_that_is_longer_than_the_limit_is_refused(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (source / "disk").open("wb") as disk:
        disk.truncate(64 * MIB)
    data = await packed(source)
    monkeypatch.setattr(archive, "MAX_FILE_BYTES", MIB)
    with pytest.raises(ArtifactFailed, match=r"limit|too large"):
        await unpack(data, target)


@pytest.mark.usefixtures("compressor")
async def test_a_frame_that_asks_for_more_memory_than_allowed_is_refused(target: Path) -> None:
    asks = zstandard.ZstdCompressionParameters.from_level(3, window_log=28)
    frame = zstandard.ZstdCompressor(compression_params=asks).compressobj()
    data = frame.compress(bytes(MIB)) + frame.flush()
    with pytest.raises(ArtifactFailed, match=r"memory|Memory|Window"):
        await unpack(data, target)


@pytest.mark.parametrize("work", ["pack", "unpack"])
async def test_who_gives_up_leaves_no_program_and_nothing_open(source: Path, target: Path, work: str) -> None:
    (source / "a").write_bytes(os.urandom(8 * MIB))
    data = await packed(source)
    files, programs = os.listdir("/proc/self/fd"), children(os.getpid())
    reading, writing = pipes.make()
    doing: asyncio.Task[Any] = asyncio.create_task(
        archive.pack(str(source), ["a"], writing) if work == "pack" else archive.unpack(reading, str(target))
    )
    async with asyncio.timeout(20):
        if work == "pack":  # until the pipe is full, which nobody reads
            while select.select([], [writing], [], 0)[1]:
                await asyncio.sleep(0)
        else:  # a part of it has come
            await pipes.write(writing, data[: 2 * MIB])
    assert children(os.getpid()) > programs
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing
    assert children(os.getpid()) == programs
    os.close(reading)
    os.close(writing)
    assert os.listdir("/proc/self/fd") == files


async def test_who_packs_for_nobody_is_told_so(source: Path) -> None:
    (source / "a").write_bytes(os.urandom(8 * MIB))
    programs = children(os.getpid())
    reading, writing = pipes.make()
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        await archive.pack(str(source), ["a"], writing)
    os.close(writing)
    assert children(os.getpid()) == programs


WITHOUT_LARGE_PIPES = """
import asyncio, fcntl, os, resource, sys
sys.path[:0] = sys.argv[1].split(os.pathsep)
from kici.runner import archive, pipes, processes, program
source, target = sys.argv[2:]
os.setresuid(60999, 60999, 60999)
kept = []
while len(kept) < 4096:
    pipe = pipes.make()
    kept.append(pipe)
    if fcntl.fcntl(pipe[1], fcntl.F_GETPIPE_SZ) < pipes.PIPE_BYTES:
        break
else:
    raise SystemExit("there is no limit")

async def main():
    reading, writing = pipes.make()
    packing = asyncio.create_task(archive.pack(source, ["a"], writing))
    packing.add_done_callback(lambda _: os.close(writing))
    await archive.unpack(reading, target)
    await packing

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="it becomes another user, who has no other pipes")
async def test_who_may_have_no_more_large_pipes_packs_and_unpacks_all_the_same() -> None:
    with tempfile.TemporaryDirectory() as base:
        Path(base).chmod(0o755)
        source, target = Path(base, "source"), Path(base, "target")
        for directory in (source, target):
            directory.mkdir()
            os.chown(directory, 60999, 60999)
        (source / "a").write_bytes(os.urandom(4 * MIB))
        path = os.pathsep.join(sys.path)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WITHOUT_LARGE_PIPES, path, str(source), str(target), stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(20):
            _, said = await process.communicate()
        assert process.returncode == 0, said.decode()
        assert (target / "a").read_bytes() == (source / "a").read_bytes()


def test_scratch_is_removed_with_directories_that_nobody_may_write(tmp_path: Path) -> None:
    with scratch(str(tmp_path)) as top:
        below = Path(top, "a/b")
        below.mkdir(parents=True)
        (below / "c").touch()
        below.chmod(0o500)
        below.parent.chmod(0)
    assert list(tmp_path.iterdir()) == []
