"""What every sandbox keeps."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from kici.agent.sandbox.contract import SandboxUnavailable
from kici.runner import pipes
from kici.runner.processes import descendants, is_zombie

ESCAPE = "(setsid bash -c '(setsid sleep {n} & echo child; exec sleep {n}) &' &) ; sleep {n} & echo up; wait"


@pytest.fixture
def seconds() -> str:
    """How long this test's processes sleep: a number by which they are known."""
    return str(100_000 + os.getpid())


def sleepers(seconds: str) -> list[str]:
    """Processes of a test that live, wherever they stand."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if command[:2] == [b"sleep", seconds.encode()] and not is_zombie(int(path.parent.name)):
            found.append(path.parent.name)
    return found


async def test_the_program_gets_the_socket_and_no_other_descriptor(boxes: Any) -> None:
    leaked = os.open("/etc/passwd", os.O_RDONLY)
    inheritable = [os.dup2(leaked, 57), os.dup2(leaked, 900)]
    try:
        said = await boxes.said("ls -l /proc/$$/fd; true")
    finally:
        for descriptor in (leaked, *inheritable):
            os.close(descriptor)
    found = dict(line.split()[8::2] for line in said.splitlines() if "->" in line)
    assert found.keys() - {"255"} == {"0", "1", "2", "3"}, said  # 255 is bash's own
    assert found["0"] == "/dev/null"
    assert found["1"] == found["2"] == found["3"]
    assert found["3"].startswith("socket:")


PIPES = """
import contextlib, fcntl, os, socket
host = socket.socket(fileno=3)
_, (source, target), _, _ = socket.recv_fds(host, 1, 2)
# What a hostile job can do with its ends: flags, the other side by its name in /proc, the size.
for pipe in (source, target):
    names = [pipe]
    for flags in (os.O_RDONLY | os.O_NONBLOCK, os.O_WRONLY):
        with contextlib.suppress(PermissionError):  # it is the host's user's
            names.append(os.open(f"/proc/self/fd/{pipe}", flags))
    for name in names:
        fcntl.fcntl(name, fcntl.F_SETFL, fcntl.fcntl(name, fcntl.F_GETFL) ^ os.O_NONBLOCK)
        fcntl.fcntl(name, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(name, True)
os.write(target, os.read(source, 100).upper())
host.recv(1)
"""


async def test_pipes_that_the_host_hands_over_reach_the_program_which_cannot_make_the_hosts_ends_block(
    boxes: Any,
) -> None:
    (theirs, ours), (back, target) = pipes.make(), pipes.make()
    for end in (ours, back):
        os.set_blocking(end, False)
    async with boxes.running("", argv=[boxes.python, "-c", PIPES]) as boxed:
        boxed.hand_over(theirs, target)
        os.close(theirs)
        os.close(target)
        await pipes.write(ours, b"there and back")
        async with asyncio.timeout(20):
            assert await pipes.read(back) == b"THERE AND BACK"
        assert not os.get_blocking(ours)
        assert not os.get_blocking(back)
        os.write(ours, bytes(4096))
        for call in (lambda: os.write(ours, b"x"), lambda: os.read(back, 1)):
            with pytest.raises(BlockingIOError):
                call()
    os.close(ours)
    os.close(back)


async def test_the_agent_s_environment_is_not_passed_on(boxes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KICI_AGENT_TOKEN", "kat_secret")
    said = await boxes.said("env")
    assert "kat_secret" not in said
    names = {line.partition("=")[0] for line in said.splitlines()}
    assert names <= {"PATH", "LANG", "HOME", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_", "KICI_PROCESS_TREE"}, said


async def test_it_has_a_session_of_its_own_and_no_terminal(boxes: Any) -> None:
    said = await boxes.said("cut -d' ' -f6 /proc/$$/stat; cut -d' ' -f7 /proc/$$/stat")
    session, terminal = said.split()
    assert int(session) != os.getsid(0)
    assert terminal == "0"


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -TERM $$", -15)])
async def test_wait_tells_how_the_program_ended(boxes: Any, script: str, code: int) -> None:
    async with boxes.running(script) as boxed, asyncio.timeout(20):
        assert [await boxed.box.wait(), await boxed.box.wait()] == [code, code]


async def test_the_job_s_files_are_where_path_says_and_may_be_filled_in_later(boxes: Any) -> None:
    script = (
        "echo up; read -r src home tmp kici <&3; cat $kici/locked; for d in $src $home $tmp; do echo x > $d/new; done"
    )
    async with boxes.running(script) as boxed:
        await boxed.line()
        root = boxes.root()
        (root / "kici" / "locked").write_text("locked")
        await boxed.tell(" ".join(boxed.box.path(root / name) for name in ("src", "home", "tmp", "kici")) + "\n")
        assert await boxed.said() == "locked"
    for name in ("src", "home", "tmp"):
        assert (root / name / "new").read_text() == "x\n"


async def test_kill_ends_what_has_forked_away_and_called_setsid(boxes: Any, seconds: str) -> None:
    async with boxes.running(ESCAPE.format(n=seconds)) as boxed:
        assert {await boxed.line(), await boxed.line()} == {"child", "up"}
        assert descendants(boxed.box.pid)
        async with asyncio.timeout(20):
            await boxed.box.kill()
        assert sleepers(seconds) == []


async def test_kill_ends_what_is_left_after_the_program_was_killed(boxes: Any, seconds: str) -> None:
    async with boxes.running(ESCAPE.format(n=seconds)) as boxed:
        assert {await boxed.line(), await boxed.line()} == {"child", "up"}
        os.kill(boxed.box.pid, signal.SIGKILL)
        async with asyncio.timeout(20):
            assert await boxed.box.wait() == -9
            await boxed.box.kill()
        assert sleepers(seconds) == []


async def test_kill_may_be_called_twice_at_once_and_again(boxes: Any) -> None:
    async with boxes.running("echo up; sleep 1000") as boxed:
        await boxed.line()
        async with asyncio.timeout(20):
            await asyncio.gather(boxed.box.kill(), boxed.box.kill())
            await boxed.box.kill()
            assert await boxed.box.wait() == -9


async def test_a_kill_that_is_cancelled_goes_on(boxes: Any) -> None:
    async with boxes.running("echo up; sleep 1000") as boxed:
        await boxed.line()
        killing = asyncio.create_task(boxed.box.kill())
        await asyncio.sleep(0)
        killing.cancel()
        async with asyncio.timeout(20):
            assert await boxed.box.wait() == -9


async def test_boxes_side_by_side_do_not_disturb_each_other(boxes: Any) -> None:
    async with (
        boxes.running("echo up; sleep 1000") as first,
        boxes.running("echo up; read -r word <&3; echo $word", slot=1) as second,
    ):
        await first.line()
        await second.line()
        async with asyncio.timeout(20):
            await first.box.kill()
            await second.tell("on\n")
            assert await second.line() == "on"


async def test_a_program_that_cannot_be_started_is_told(boxes: Any) -> None:
    words = ""
    with contextlib.suppress(SandboxUnavailable):
        try:
            async with boxes.running("", argv=["/nonexistent/python"]) as boxed, asyncio.timeout(20):
                assert await boxed.box.wait() != 0
                words = boxed.box.last_words()
        except SandboxUnavailable as error:
            words = str(error)
            raise
    assert "/nonexistent/python" in words
