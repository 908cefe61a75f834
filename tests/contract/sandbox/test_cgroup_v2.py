"""The suite of limits on a kernel with control groups of version 2 only, whatever this machine has.

That kernel is Debian's User Mode Linux: a process of ours. It sees this machine's files, read-only.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kici.agent.sandbox.launch import SOURCE
from tests.support import container_image

TESTS = Path(__file__).parent
REPOSITORY = TESTS.parents[2]
BOOTED = "the kernel has started its first program"
BOOT = f"""#!/bin/sh
echo {BOOTED}
"""
BOOT += """\
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /dev/shm /dev/pts; mount -t tmpfs shm /dev/shm; mount -t devpts pts /dev/pts
mount -t tmpfs -o mode=1777 tmp /var/tmp; mount -t tmpfs run /run; ip link set lo up
cd {repository}
export CI=1 HOME=/root LANG=C.UTF-8 PATH={path} PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={source} TMPDIR=/var/tmp
{group}
{command}
find /sys/fs/cgroup{below} -mindepth 1 -type d
echo o >/proc/sysrq-trigger
sleep 60
"""
DELEGATED = "mkdir {unit}; echo '+cpu +memory +pids' >{unit}/../cgroup.subtree_control; echo $$ >{unit}/cgroup.procs"
UNIT = "/sys/fs/cgroup/kici.service"


@pytest.fixture
def kernel() -> str:
    found = shutil.which("linux.uml")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("linux.uml is not installed: the package user-mode-linux has it")
        pytest.skip("linux.uml is not installed")
    if os.geteuid() != 0:
        pytest.skip("without root it may not read what the suite needs")
    return found


def booted(kernel: str, directory: Path, command: str, unit: str) -> str:
    """What was said on the console. `unit`: the group that the command runs in; empty: the top."""
    boot = directory / "boot"
    boot.write_text(
        BOOT.format(
            repository=shlex.quote(str(REPOSITORY)), source=shlex.quote(f"{SOURCE}:{REPOSITORY}"),
            path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", command=command,
            group=DELEGATED.format(unit=unit) if unit else "", below=unit.removeprefix("/sys/fs/cgroup"),
        )
    )  # fmt: skip
    boot.chmod(0o755)
    argv = [kernel, "mem=1600M", "rootfstype=hostfs", "rootflags=/", "ro", f"init={boot}", "cgroup_no_v1=all", "quiet"]
    process = subprocess.Popen(
        [*argv, "con=null", "con0=fd:0,fd:1", f"umid={directory.name}"], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        env={"HOME": str(directory), "TMPDIR": str(directory), "PATH": os.defpath},
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=400)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    if BOOTED not in said:
        pytest.skip(f"User Mode Linux does not boot here: {said.strip()[-500:]}")
    return said


SUITE = (
    "{python} -m pytest -p no:cacheprovider -q -n0 -rA --color=no tests/contract/sandbox/test_limits.py "
    '-k "not container"; echo "the suite ended with $?"'
)


@pytest.mark.proof
@pytest.mark.timeout(420)
@pytest.mark.parametrize("where", ["at the top", "in the group of a unit"])
def test_limits_are_kept_by_version_2(kernel: str, tmp_path: Path, where: str) -> None:
    """In the group of a unit, where systemd puts it, the agent has to leave that group before it may hand it down."""
    unit = UNIT if where != "at the top" else ""
    said = booted(kernel, tmp_path, SUITE.format(python=shlex.quote(sys.executable)), unit)
    assert "the suite ended with 0" in said, said
    for sandbox in ("none", "bubblewrap"):
        assert len(re.findall(rf"^PASSED \S+\[{sandbox}\]", said, re.MULTILINE)) >= 8, said
    assert re.findall(r"^/sys/fs/cgroup\S*", said, re.MULTILINE) == [f"{UNIT}/kici-agent"] * bool(unit), said


STORAGE = '[storage]\ndriver = "vfs"\ngraphroot = "/var/tmp/graph"\nrunroot = "/run/storage"\n'
CONTAINER = """
import asyncio, os, pathlib, socket, subprocess, sys
from kici.agent.sandbox import cgroups, container, podman
from kici.agent.sandbox.contract import BoxSpec, Limits

container._START_S = podman._QUICK_S = 300  # that kernel is slow
here = pathlib.Path("/var/tmp")
os.environ |= {"CONTAINERS_CONF": sys.argv[2], "CONTAINERS_STORAGE_CONF": sys.argv[3]}
with open(sys.argv[1], "rb") as image:
    subprocess.run(["podman", "import", "--quiet", "-", "localhost/v2:1"], stdin=image, check=True)
limits = Limits(memory_bytes=96 << 20, cpus=0.5, pids=60)
assert cgroups.enforceable_by_podman(podman.machine().controllers, limits) == limits
sandbox = container.ContainerSandbox(podman.Options("localhost/v2:1", "v2", limits=limits))

async def main():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    for name in ("src", "kici", "tmp", "home"):
        (here / "job" / name).mkdir(parents=True)
    hog = f"{container.python()} -I -c 'x = bytearray(300 << 20)'; echo $? >&3; read -r end <&3"
    box = await sandbox.run(BoxSpec(0, here / "job", limits=limits), ["/bin/bash", "-c", hog], theirs.fileno())
    print("exit code", (await asyncio.get_running_loop().sock_recv(ours, 100)).decode().strip())
    for directory in cgroups.of_process(box.pid):
        print(*(f"{name}={(directory / name).read_text().strip()}" for name in ("memory.max", "cpu.max", "pids.max")))
    used = box.usage()
    print("killed", used.out_of_memory_kills, "at most", 80 << 20 < used.peak_memory_bytes <= 96 << 20)
    await box.kill()

asyncio.run(main())
"""


@pytest.mark.proof
@pytest.mark.timeout(420)
def test_limits_of_containers_are_kept_by_version_2(kernel: str, tmp_path: Path) -> None:
    container_image.skip_without_podman()
    (tmp_path / "image.tar").write_bytes(container_image.archive())
    (tmp_path / "containers.conf").write_text(container_image.CONFIGURATION)
    (tmp_path / "storage.conf").write_text(STORAGE)
    (tmp_path / "program.py").write_text(CONTAINER)
    files = [tmp_path / name for name in ("program.py", "image.tar", "containers.conf", "storage.conf")]
    said = booted(kernel, tmp_path, shlex.join(map(str, (sys.executable, *files))) + " 2>&1", UNIT)
    assert "exit code 137" in said, said
    assert f"memory.max={96 << 20} cpu.max=50000 100000 pids.max=60" in said, said
    assert "killed 1 at most True" in said, said
