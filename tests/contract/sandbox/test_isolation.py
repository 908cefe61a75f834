"""What bubblewrap keeps beyond that. As root this shows the root agent's recipe, else the other one."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kici.agent.sandbox.launch import SOURCE
from kici.runner.processes import descendants, gone


def status(said: str) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)


async def test_there_is_no_capability_and_none_can_be_had(steps: Any) -> None:
    found = status(await steps.said("cat /proc/self/status"))
    assert [found[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == ["0" * 16] * 4
    assert found["NoNewPrivs"] == "1"
    if os.geteuid() == 0:
        assert found["CapBnd"] == "0" * 16
    said = await steps.said(
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


async def test_the_users_of_an_image_build_are_no_other_slot_s(image_build: Any) -> None:
    if os.geteuid() != 0:
        pytest.skip("an agent that is not root has one range")
    ranges = []
    for slot in (0, 1, 477):
        told = await image_build.said("cat /proc/self/uid_map; cmp /proc/self/uid_map /proc/self/gid_map", slot=slot)
        (inside, own, one), (first, begin, count) = map(str.split, told.splitlines())
        assert (inside, int(own), one, first) == ("0", image_build.sandbox.owner(slot), "1", "1")
        ranges.append(range(int(begin), int(begin) + int(count)))
    assert [len(one) for one in ranges] == [65_536] * 3
    assert ranges[0].stop <= ranges[1].start
    assert ranges[1].stop <= ranges[2].start
    assert ranges[2].stop < 2**31


async def test_a_root_agent_s_job_is_the_slot_s_own_user(steps: Any) -> None:
    if os.geteuid() != 0:
        pytest.skip("only a root agent has users to give")
    uid = str(steps.sandbox.owner(3))
    said = await steps.said("id -u; id -g; id -G; whoami; cat /proc/self/uid_map", slot=3)
    assert said.split() == [uid, uid, uid, "kici", uid, uid, "1"]


async def test_the_host_s_files_cannot_be_seen_or_written(bubblewrap: Any, base: Path) -> None:
    secret = base / "agent-secret"
    secret.write_text("kat_secret")
    secret.chmod(0o644)
    said = await bubblewrap.said(
        f"cat /etc/shadow {secret}; cat /etc/passwd; ls /root /home /var /boot /srv; "
        "find /run /sys -mindepth 1 -printf 'found %p\\n'; "
        "for f in /etc/x /usr/x /usr/bin/x /x /work/kici/x /root/x /var/x /sys/x /proc/sys/kernel/hostname "
        "/proc/sys/kernel/core_pattern /proc/sys/kernel/sysrq /proc/sys/vm/drop_caches /proc/sysrq-trigger "
        f"{'/dev/x' if bubblewrap.profile == 'steps' else '/usr/lib/x'}; "
        "do (echo x > $f) 2>/dev/null && echo wrote $f; done; "
        "rm -rf /usr/bin/env /work/kici; ls -d /usr/bin/env /work/kici"
    )
    assert "kat_secret" not in said
    assert "wrote" not in said
    assert "found" not in said
    for absent in ("/etc/shadow", "/boot", "/home", *(("/run", "/sys") if bubblewrap.profile == "steps" else ())):
        assert any(f"{name}: No such file" in said for name in (absent, f"'{absent}'", f"‘{absent}’")), (absent, said)
    known = ["root", "kici"] if bubblewrap.profile == "steps" else ["root"]
    assert [line.split(":")[0] for line in said.splitlines() if line.count(":") == 6] == known
    assert said.endswith("/usr/bin/env\n/work/kici\n")


async def test_a_database_s_socket_cannot_be_reached(bubblewrap: Any, base: Path) -> None:
    directory = base / "postgres"
    directory.mkdir(mode=0o777)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(directory / ".s.PGSQL.5432"))
        server.listen()
        said = await bubblewrap.said(f"ls -la {directory} {base}")
    assert "PGSQL" not in said
    assert said.count("No such file") == 2


async def test_the_agent_s_environment_and_processes_are_out_of_reach(bubblewrap: Any) -> None:
    said = await bubblewrap.said(
        f"for pid in {os.getpid()} {os.getppid()}; do kill -0 $pid && printf 'rea%s' ched; done; "
        "for p in /proc/[0-9]*; do tr '\\0' '\\n' < $p/environ; tr '\\0' ' ' < $p/cmdline; done; echo end"
    )
    assert said.endswith("end\n")
    assert "reached" not in said
    assert "PYTEST_CURRENT_TEST" not in said
    assert "pytest" not in said


async def test_another_job_is_out_of_reach(bubblewrap: Any) -> None:
    other = bubblewrap.root(1)
    script = "umask 0; echo private > /work/src/file; echo up; sleep 1000"
    look = f"cat {other}/src/file; ls {other}; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls /work"
    async with bubblewrap.running(script, slot=1) as first:
        await first.line()
        said = await bubblewrap.said(look)
    assert "private" not in said
    assert "sleep 1000" not in said
    assert said.count("No such file") == 2


async def test_no_namespace_of_the_host_s_is_shared_but_the_network(bubblewrap: Any) -> None:
    said = await bubblewrap.said("for n in pid ipc uts mnt user; do echo $n $(readlink /proc/self/ns/$n); done")
    shared = [
        name for name, inside in map(str.split, said.splitlines()) if inside == os.readlink(f"/proc/self/ns/{name}")
    ]
    assert shared == []


async def test_shared_memory_and_tmp_are_the_job_s_own(bubblewrap: Any) -> None:
    said = await bubblewrap.said(
        "echo a >/dev/shm/kici-x; echo b >/tmp/x; echo c >/var/tmp/y; cat /dev/shm/kici-x /tmp/[xy]"
    )
    assert said.split() == ["a", "b", "c"]
    assert not Path("/dev/shm/kici-x").exists()
    assert (bubblewrap.root() / "tmp" / "x").read_text() == "b\n"


async def test_hard_links_between_home_and_checkout_work(bubblewrap: Any) -> None:
    said = await bubblewrap.said("pwd; echo $HOME; echo a > ~/cached && ln ~/cached /work/src/linked && cat linked")
    assert said.split() == ["/work/src", "/work/home", "a"]


async def test_a_network_of_its_own_reaches_nothing(bubblewrap: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"(exec 4<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo reached || echo alone"
        assert await bubblewrap.said(script, network=True) == "reached\n"
        assert await bubblewrap.said(script, network=False) == "alone\n"


async def test_python_and_kici_are_there_and_cannot_be_changed(bubblewrap: Any) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(SOURCE)!r}); import kici.sdk, msgspec, os; "
        "os.write(3, str([kici.__file__, *(os.access(one.__file__, os.W_OK) for one in (kici, msgspec))]).encode())"
    )
    async with bubblewrap.running("", argv=[sys.executable, "-I", "-c", program]) as boxed:
        assert await boxed.said() == f"['{SOURCE}/kici/__init__.py', False, False]", boxed.box.last_words()


async def test_the_box_dies_with_the_agent(bubblewrap: Any) -> None:
    program = f"""
import asyncio, socket
from pathlib import Path
from kici.agent.sandbox.bubblewrap import Bubblewrap
from kici.agent.sandbox.contract import BoxSpec

async def main():
    ours, theirs = socket.socketpair()
    argv = ["/bin/bash", "-c", "setsid sleep 1000 & echo up >&3; sleep 1000"]
    box = await Bubblewrap().run(BoxSpec(5, Path({str(bubblewrap.root(5))!r})), argv, theirs.fileno())
    ours.setblocking(False)
    await asyncio.get_running_loop().sock_recv(ours, 3)
    print(box.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    environment = {"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"]}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as agent:
        assert agent.stdout
        try:
            pid = int(agent.stdout.readline())
            below = [pid, *descendants(pid)]
        finally:
            agent.kill()
    assert len(below) >= 3
    async with asyncio.timeout(20):
        assert await gone(below, 10)
