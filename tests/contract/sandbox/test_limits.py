"""Limits of a box, and what is known of it afterwards. Without control groups these tests have no subject."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kici.agent.process_tree import new_tree
from kici.agent.sandbox import cgroups
from kici.agent.sandbox.contract import Limits, SandboxUnavailable
from kici.agent.sandbox.launch import SOURCE
from kici.runner.processes import gone, is_zombie

MIB = 1024**2
_TAKE = 'import time; x = bytearray({mib} << 20); print("had it", flush=True); time.sleep(1000)'
HOG = f"{{python}} -I -c '{_TAKE}'; echo $?"
BOMB = "bomb() { bomb | bomb & }; bomb 2>/dev/null; echo up; sleep 1000"


def groups(of: int = os.getpid()) -> set[Path]:
    """Of boxes that this process, or another one, has made."""
    return {path for one in cgroups.hierarchies() for path in one.path.glob(f"kici-box-{of}-*")}


@pytest.fixture(autouse=True)
def _can_limit() -> None:
    try:
        cgroups.enforceable(Limits(memory_bytes=64 * MIB, cpus=1, pids=100))
    except SandboxUnavailable as error:
        if os.environ.get("CI") and os.geteuid() == 0:
            raise
        pytest.skip(str(error))


def members(pid: int) -> list[Path]:
    """The groups of its box that a process is in: ours, or podman's."""
    return [path for path in cgroups.of_process(pid) if path.name.startswith(("kici-box-", "libpod-"))]


def throttled(boxed: Any) -> int:
    """How often the box had to wait for its next share of processor time."""
    text = "".join(path.read_text() for one in members(boxed.box.pid) if (path := one / "cpu.stat").exists())
    assert "nr_throttled" in text
    return int(dict(line.split() for line in text.splitlines())["nr_throttled"])


async def test_a_box_without_limits_has_used_something(limited: Any) -> None:
    async with limited.running("echo up; read -r go <&3; " + HOG.format(mib=50, python=limited.python)) as boxed:
        await boxed.line()
        before = boxed.box.usage()
        await boxed.tell("\n")
        assert await boxed.line() == "had it"
        async with asyncio.timeout(20):  # the kernel adds up what its processors have counted, now and then
            while (used := boxed.box.usage()).peak_memory_bytes <= 50 * MIB:
                await asyncio.sleep(0.01)
        await boxed.box.kill()
    assert before.peak_memory_bytes < 50 * MIB
    assert (used.out_of_memory_kills, used.refused_processes) == (0, 0)
    assert boxed.box.usage().peak_memory_bytes >= used.peak_memory_bytes


async def test_what_takes_too_much_memory_is_killed_and_that_is_known_with_the_peak(
    limited: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And nothing of it is left where the agent works: podman's monitor writes a file."""
    monkeypatch.chdir(tmp_path)
    async with (
        limited.running("echo up; read -r go <&3; echo on", slot=1) as neighbour,
        limited.running(HOG.format(mib=300, python=limited.python), limits=Limits(memory_bytes=96 * MIB)) as boxed,
    ):
        assert "Killed" in await boxed.line()
        assert await boxed.line() == "137"
        async with asyncio.timeout(20):
            await boxed.box.wait()
        await boxed.box.kill()
        used = boxed.box.usage()
        await neighbour.line()
        await neighbour.tell("\n")
        assert await neighbour.line() == "on"
    assert list(tmp_path.iterdir()) == []
    assert used.out_of_memory_kills == 1
    assert 80 * MIB < used.peak_memory_bytes <= 96 * MIB


async def test_page_cache_does_not_count_as_memory(limited: Any) -> None:
    async with limited.running(
        "head -c 150000000 /dev/zero > $HOME/big; cat $HOME/big > /dev/null; echo up; sleep 1000"
    ) as boxed:
        assert await boxed.line() == "up"
        used = boxed.box.usage()
    assert used.peak_memory_bytes < 50 * MIB


async def test_a_fork_bomb_stops_at_the_limit_and_ends_with_the_box(limited: Any) -> None:
    async with (
        limited.running("echo up; read -r go <&3; (echo on)", slot=1) as neighbour,
        limited.running(BOMB, limits=Limits(pids=60)) as boxed,
    ):
        await boxed.line()
        await neighbour.line()
        async with asyncio.timeout(20):
            while not boxed.box.usage().refused_processes:
                await asyncio.sleep(0)
        inside = [int(pid) for path in members(boxed.box.pid) for pid in (path / "cgroup.procs").read_text().split()]
        assert 0 < len(set(inside)) <= 60
        await neighbour.tell("\n")
        assert await neighbour.line() == "on"
        async with asyncio.timeout(20):
            await boxed.box.kill()
        assert all(is_zombie(pid) for pid in inside)
        assert boxed.box.usage().refused_processes > 0


async def test_the_limits_stand_in_the_kernel_from_the_first_process_on(limited: Any) -> None:
    limits = Limits(memory_bytes=128 * MIB, cpus=0.5, pids=100)
    async with limited.running("echo up; sleep 1000", limits=limits) as boxed:
        await boxed.line()
        files = ("memory.limit_in_bytes", "memory.max", "pids.max", "cpu.cfs_quota_us", "cpu.max")
        paths = [one / name for one in members(boxed.box.pid) for name in files]
        found = {path.name: path.read_text().strip() for path in paths if path.exists()}
    assert int(found.get("memory.limit_in_bytes") or found["memory.max"]) == 128 * MIB
    assert found["pids.max"] == "100"
    assert (found.get("cpu.cfs_quota_us") or found["cpu.max"].split()[0]) == "50000"


async def test_a_busy_box_is_held_back_by_its_cpu_limit(limited: Any) -> None:
    async with limited.running("echo up; while :; do :; done", limits=Limits(cpus=0.1)) as boxed:
        await boxed.line()
        async with asyncio.timeout(30):
            while not throttled(boxed):
                await asyncio.sleep(0.01)


LATE = "echo up; read -r go <&3; "


def quota(boxed: Any) -> str:
    """Of the box, per 100 ms, in microseconds."""
    texts = [
        path.read_text().split()[0]
        for one in members(boxed.box.pid)
        for name in ("cpu.cfs_quota_us", "cpu.max")
        if (path := one / name).exists()
    ]
    assert texts
    return texts[0]


async def test_memory_that_is_lowered_once_the_job_is_known_counts_from_then_on(limited: Any) -> None:
    hog = LATE + HOG.format(mib=300, python=limited.python)
    async with limited.running(hog, limits=Limits(memory_bytes=1024 * MIB)) as boxed:
        assert await boxed.line() == "up"
        assert boxed.box.lower(Limits(memory_bytes=96 * MIB)).memory_bytes == 96 * MIB
        await boxed.tell("\n")
        assert "Killed" in await boxed.line()
        assert await boxed.line() == "137"
        assert boxed.box.usage().out_of_memory_kills == 1


async def test_processor_time_of_a_box_without_a_limit_can_be_limited_later(limited: Any) -> None:
    async with limited.running(LATE + "while :; do :; done") as boxed:
        assert await boxed.line() == "up"
        assert boxed.box.lower(Limits(cpus=0.1)).cpus == 0.1
        assert quota(boxed) == "10000"
        await boxed.tell("\n")
        async with asyncio.timeout(30):
            while not throttled(boxed):
                await asyncio.sleep(0.01)


async def test_no_limit_is_ever_raised(limited: Any) -> None:
    limits = Limits(memory_bytes=128 * MIB, cpus=0.5)
    async with limited.running(LATE, limits=limits) as boxed:
        assert await boxed.line() == "up"
        held = boxed.box.lower(Limits(memory_bytes=512 * MIB, cpus=2))
        assert (held.memory_bytes, held.cpus) == (128 * MIB, 0.5)
        held = boxed.box.lower(Limits(memory_bytes=96 * MIB))
        assert (held.memory_bytes, held.cpus) == (96 * MIB, 0.5)
        held = boxed.box.lower(Limits(memory_bytes=100 * MIB))
        assert (held.memory_bytes, held.cpus) == (96 * MIB, 0.5)
        assert quota(boxed) == "50000"
        files = ("memory.limit_in_bytes", "memory.max")
        assert {
            int(path.read_text()) for one in members(boxed.box.pid) for name in files if (path := one / name).exists()
        } == {96 * MIB}


def test_a_box_in_no_group_says_that_nothing_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "hierarchies", list)
    assert new_tree().lower(Limits(memory_bytes=96 * MIB, cpus=1)) == Limits()


async def test_no_group_is_left(grouped: Any) -> None:
    before = groups()
    async with grouped.running("echo up; sleep 1000", limits=Limits(cpus=1, pids=50)) as boxed:
        await boxed.line()
        assert groups() - before
    assert not groups() - before


async def test_a_box_that_does_not_start_leaves_no_group(grouped: Any) -> None:
    before = groups()
    for _ in range(2):
        try:
            async with grouped.running("", argv=["/nonexistent/program"]) as boxed, asyncio.timeout(20):
                await boxed.box.wait()
        except SandboxUnavailable:
            pass
    assert not groups() - before


async def test_what_a_killed_agent_has_left_is_ended_by_the_next(base: Path) -> None:
    """Under `none` a step that forks away outlives an agent that was killed: only its group tells whose it was."""
    program = f"""
import asyncio, socket, sys
from pathlib import Path
from kici.agent.sandbox import none
from kici.agent.sandbox.contract import BoxSpec

none.runner_argv = lambda: ["/bin/bash", "-c", "setsid sleep 1000 & echo $! >&3; sleep 1000"]

async def main():
    ours, theirs = socket.socketpair()
    box = await none.NoSandbox().start(BoxSpec(0, Path({str(base)!r})), theirs.fileno())
    ours.setblocking(False)
    print(box.pid, (await asyncio.get_running_loop().sock_recv(ours, 20)).decode().strip(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    environment = {"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"]}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as agent:
        assert agent.stdout
        try:
            pids = list(map(int, agent.stdout.readline().split()))
        finally:
            agent.kill()
    left = groups(agent.pid)
    assert left
    assert not any(is_zombie(pid) for pid in pids), "nothing was left: this test shows nothing"
    living = cgroups.ControlGroup.make(Limits())
    assert living is not None
    try:
        cgroups.sweep.cache_clear()
        cgroups.sweep()
        async with asyncio.timeout(20):
            assert await gone(pids, 10)
        assert not groups(agent.pid)
        assert groups(), "the group of a living agent was taken too"
    finally:
        living.remove_empty()


def test_a_limit_that_cannot_be_kept_is_refused_by_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    only = [one for one in cgroups.hierarchies() if not one.controllers & {"memory", "cpu", "pids"}]
    monkeypatch.setattr(cgroups, "hierarchies", lambda: only)
    for limits, name in ((Limits(memory_bytes=MIB), "MEMORY"), (Limits(cpus=1), "CPUS"), (Limits(pids=99), "PIDS")):
        with pytest.raises(SandboxUnavailable, match=f"KICI_JOB_{name}: this agent cannot limit that here"):
            cgroups.enforceable(limits)
    assert cgroups.enforceable(Limits()).pids is None


def test_without_a_word_of_the_operator_processes_are_limited_where_they_can_be() -> None:
    assert cgroups.enforceable(Limits()) == Limits(pids=cgroups.DEFAULT_PIDS)
