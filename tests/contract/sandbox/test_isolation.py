"""What every sandbox that isolates keeps beyond that. As root this shows the root agent's recipe, else the other one.

A container differs where a test says so: its files are an image's, it has a `/sys`, and its users are a range.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kici.agent.sandbox import podman
from kici.agent.sandbox.launch import SOURCE
from kici.runner.processes import descendants, gone


def status(said: str) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)


async def test_there_is_no_capability_and_none_can_be_had(stripped: Any) -> None:
    found = status(await stripped.said("cat /proc/self/status"))
    assert [found[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == ["0" * 16] * 4
    assert found["NoNewPrivs"] == "1"
    if os.geteuid() == 0 or stripped.in_container:
        assert found["CapBnd"] == "0" * 16
    said = await stripped.said(
        "for command in 'unshare -U' 'unshare -m' 'mount -t tmpfs x' 'mount -o remount,rw /' 'umount /usr' 'chroot /'; "
        "do $command /tmp >/dev/null 2>&1 </dev/null && echo did $command; done; echo end"
    )
    assert said == "end\n"


async def test_an_image_build_has_only_what_a_container_and_mounting_take_and_cannot_have_more(
    image_build: Any,
) -> None:
    """Not among them: NET_ADMIN, SYS_PTRACE, SYS_MODULE, SYS_RESOURCE, DAC_READ_SEARCH, MKNOD, …"""
    found = status(await image_build.said("cat /proc/self/status"))
    assert [found[name] for name in ("CapPrm", "CapEff", "CapBnd")] == ["00000000802405fb"] * 3
    assert found["NoNewPrivs"] == "1"
    said = await image_build.said(
        "for command in 'unshare -U' 'mount -o remount,rw /' 'mount -o remount,rw,bind /usr' 'umount /usr' "
        "'mount -t proc x' 'mount -t sysfs x' 'mount -t cgroup2 x' 'mount -t ext4 /dev/vda'; "
        "do $command /tmp >/dev/null 2>&1 </dev/null && echo did $command; done; "
        "chmod 777 /usr/bin/env 2>/dev/null && echo changed; mount -t tmpfs x /run && echo mounted"
    )
    assert said == "mounted\n"


async def test_the_users_of_a_job_are_no_other_slot_s(ranged: Any) -> None:
    """Of an image build all but root, who is the slot's user; of a container all."""
    if os.geteuid() != 0:
        pytest.skip("an agent that is not root has one range")
    ranges = []
    for slot in (0, 1, 477):
        script = 'cat /proc/self/uid_map; [ "$(</proc/self/uid_map)" = "$(</proc/self/gid_map)" ] || echo differ'
        *lines, (first, begin, count) = map(str.split, (await ranged.said(script, slot=slot)).splitlines())
        owner = ranged.sandbox.owner(slot)
        if ranged.in_container:
            assert (lines, first) == ([], "0")
            assert owner in range(int(begin), int(begin) + int(count))
        else:
            assert (lines, first) == ([["0", str(owner), "1"]], "1")
        ranges.append(range(int(begin), int(begin) + int(count)))
    assert [len(one) for one in ranges] == [65_536] * 3
    assert ranges[0].stop <= ranges[1].start
    assert ranges[1].stop <= ranges[2].start
    assert ranges[2].stop < 2**31


async def test_a_root_agent_s_job_is_the_slot_s_own_user_and_so_are_its_files(stripped: Any) -> None:
    if os.geteuid() != 0:
        pytest.skip("only a root agent has users to give")
    uid = stripped.sandbox.owner(3)
    said = await stripped.said("id -u; id -g; id -G; whoami; echo x > file; cat /proc/self/uid_map", slot=3)
    inside, group, groups, name, *users = said.split()
    assert inside == group == groups
    assert name == "kici"
    made = (stripped.root(3) / "src" / "file").stat()
    assert made.st_uid == made.st_gid == uid
    if not stripped.in_container:  # whose user has one number inside, for all slots
        assert [inside, *users] == [str(uid), str(uid), str(uid), "1"]


async def test_the_host_s_files_cannot_be_seen_or_written(isolated: Any, base: Path) -> None:
    secret = base / "agent-secret"
    secret.write_text("kat_secret")
    secret.chmod(0o644)
    said = await isolated.said(
        f"cat /etc/shadow {secret}; cat /etc/passwd; ls /root /home /var /boot /srv; "
        f"find /run {'' if isolated.in_container else '/sys'} -mindepth 1 -printf 'found %p\\n'; "
        "for f in /etc/x /usr/x /usr/bin/x /x /work/kici/x /root/x /var/x /sys/x /proc/sys/kernel/hostname "
        "/proc/sys/kernel/core_pattern /proc/sys/kernel/sysrq /proc/sys/vm/drop_caches /proc/sysrq-trigger "
        f"/opt/kici/python/x {'/dev/x' if isolated.profile == 'steps' else '/usr/lib/x'}; "
        "do (echo x > $f) 2>/dev/null && echo wrote $f; done; "
        "rm -rf /usr/bin/env /work/kici; ls -d /usr/bin/env /work/kici"
    )
    assert "kat_secret" not in said
    assert "wrote" not in said
    # What podman puts into every container, to tell a program that it is in one: empty.
    assert [line for line in said.splitlines() if "found" in line] == [
        "found /run/.containerenv"
    ] * isolated.in_container
    # An image has directories of its own by these names.
    usual = () if isolated.in_container else ("/home", *(("/run", "/sys") if isolated.profile == "steps" else ()))
    for absent in ("/etc/shadow", "/boot", *usual):
        assert any(f"{name}: No such file" in said for name in (absent, f"'{absent}'", f"‘{absent}’")), (absent, said)
    known = ["root", "kici"] if isolated.profile == "steps" else ["root"]
    assert [line.split(":")[0] for line in said.splitlines() if line.count(":") == 6] == known
    assert said.endswith("/usr/bin/env\n/work/kici\n")


@pytest.mark.parametrize("network", [True, False])
async def test_sysfs_of_a_container_shows_no_control_group_of_others_and_cannot_be_written(
    contained: Any, network: bool
) -> None:
    """The other sandboxes have none. With the host's network it is the host's own, with all that is mounted in it."""
    said = await contained.said(
        "for kind in /sys/fs/cgroup/*; do cat $kind/cgroup.procs $kind/*/cgroup.procs; done 2>/dev/null; "
        "for kind in /sys/fs/cgroup/*; do ls -d $kind/*/; done 2>/dev/null; "
        "find /sys -writable -not -type l -not -path /sys/fs -not -path /sys/kernel 2>/dev/null; "
        "for f in fs kernel; do (echo x > /sys/$f/x) 2>/dev/null && echo wrote $f; done; echo end",
        network=network,
    )
    *pids, end = said.splitlines()
    assert end == "end"
    assert all(pid.isdigit() and 0 < int(pid) < 100 for pid in pids), said


async def test_a_database_s_socket_cannot_be_reached(isolated: Any, base: Path) -> None:
    directory = base / "postgres"
    directory.mkdir(mode=0o777)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(directory / ".s.PGSQL.5432"))
        server.listen()
        said = await isolated.said(f"ls -la {directory} {base}")
    assert "PGSQL" not in said
    assert said.count("No such file") == 2


async def test_the_agent_s_environment_and_processes_are_out_of_reach(isolated: Any) -> None:
    said = await isolated.said(
        f"for pid in {os.getpid()} {os.getppid()}; do kill -0 $pid && printf 'rea%s' ched; done; "
        "for p in /proc/[0-9]*; do tr '\\0' '\\n' < $p/environ; tr '\\0' ' ' < $p/cmdline; done; echo end"
    )
    assert said.endswith("end\n")
    assert "reached" not in said
    assert "PYTEST_CURRENT_TEST" not in said
    assert "pytest" not in said


async def test_another_job_is_out_of_reach(isolated: Any) -> None:
    other = isolated.root(1)
    script = "umask 0; echo private > /work/src/file; echo up; sleep 1000"
    look = f"cat {other}/src/file; ls {other}; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls /work"
    async with isolated.running(script, slot=1) as first:
        await first.line()
        said = await isolated.said(look)
    assert "private" not in said
    assert "sleep 1000" not in said
    assert said.count("No such file") == 2


async def test_no_namespace_of_the_host_s_is_shared_but_the_network(isolated: Any) -> None:
    said = await isolated.said(
        "for n in pid ipc uts mnt user cgroup net; do echo $n $(readlink /proc/self/ns/$n); done"
    )
    shared = [
        name for name, inside in map(str.split, said.splitlines()) if inside == os.readlink(f"/proc/self/ns/{name}")
    ]
    assert shared == ["net"]


async def test_shared_memory_and_tmp_are_the_job_s_own(isolated: Any) -> None:
    said = await isolated.said(
        "echo a >/dev/shm/kici-x; echo b >/tmp/x; echo c >/var/tmp/y; cat /dev/shm/kici-x /tmp/[xy]"
    )
    assert said.split() == ["a", "b", "c"]
    assert not Path("/dev/shm/kici-x").exists()
    assert (isolated.root() / "tmp" / "x").read_text() == "b\n"


async def test_hard_links_between_home_and_checkout_work(isolated: Any) -> None:
    said = await isolated.said("pwd; echo $HOME; echo a > ~/cached && ln ~/cached /work/src/linked && cat linked")
    assert said.split() == ["/work/src", "/work/home", "a"]


async def test_a_network_of_its_own_reaches_nothing(isolated: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"(exec 4<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo reached || echo alone"
        assert await isolated.said(script, network=True) == "reached\n"
        assert await isolated.said(script, network=False) == "alone\n"


async def test_python_and_kici_are_there_and_cannot_be_changed(isolated: Any) -> None:
    program = (
        f"import sys; sys.path[:0] = {isolated.packages!r}; import kici.sdk, msgspec, os; "
        "os.write(3, str([kici.__file__, *(os.access(one.__file__, os.W_OK) for one in (kici, msgspec))]).encode())"
    )
    where = f"{isolated.packages[-1]}/kici/__init__.py"
    async with isolated.running("", argv=[isolated.python, "-I", "-c", program]) as boxed:
        assert await boxed.said() == f"['{where}', False, False]", boxed.box.last_words()


async def test_the_box_dies_with_the_agent(isolated: Any) -> None:
    """Of a container not by itself, as bubblewrap: a process beside it waits for the agent's end."""
    program = f"""
import asyncio, socket
from pathlib import Path
from kici.agent.sandbox.contract import BoxSpec
{isolated.program}

async def main():
    ours, theirs = socket.socketpair()
    argv = ["/bin/bash", "-c", "setsid sleep 1000 & echo up >&3; sleep 1000"]
    box = await sandbox.run(BoxSpec(5, Path({str(isolated.root(5))!r})), argv, theirs.fileno())
    ours.setblocking(False)
    await asyncio.get_running_loop().sock_recv(ours, 3)
    print(box.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    environment = podman.environment() | {"PYTHONPATH": str(SOURCE)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as agent:
        assert agent.stdout
        try:
            pid = int(agent.stdout.readline())
            below = [pid, *descendants(pid)]
        finally:
            agent.kill()
    assert len(below) >= 3
    async with asyncio.timeout(30):
        assert await gone(below, 20)
    if isolated.in_container:
        agent_name = f"{isolated.sandbox._options.agent}other"
        async with asyncio.timeout(30):
            while podman.said("ps", "--all", "--quiet", f"--filter=label={podman.LABEL}={agent_name}"):
                await asyncio.sleep(0.05)
