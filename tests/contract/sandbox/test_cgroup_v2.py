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

TESTS = Path(__file__).parent
REPOSITORY = TESTS.parents[2]
BOOT = """#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /dev/shm /dev/pts; mount -t tmpfs shm /dev/shm; mount -t devpts pts /dev/pts
mount -t tmpfs -o mode=1777 tmp /var/tmp; ip link set lo up
cd {repository}
export CI=1 HOME=/root LANG=C.UTF-8 PATH={path} PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={source} TMPDIR=/var/tmp
{group}
{python} -m pytest -p no:cacheprovider -q -n0 -rA --color=no tests/contract/sandbox/test_limits.py -k "not container"
echo "the suite ended with $?"
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


@pytest.mark.proof
@pytest.mark.timeout(420)
@pytest.mark.parametrize("where", ["at the top", "in the group of a unit"])
def test_limits_are_kept_by_version_2(kernel: str, tmp_path: Path, where: str) -> None:
    """In the group of a unit, where systemd puts it, the agent has to leave that group before it may hand it down."""
    unit = UNIT if where != "at the top" else ""
    boot = tmp_path / "boot"
    boot.write_text(
        BOOT.format(
            repository=shlex.quote(str(REPOSITORY)), source=shlex.quote(str(SOURCE)),
            python=shlex.quote(sys.executable), path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            group=DELEGATED.format(unit=unit) if unit else "", below=unit.removeprefix("/sys/fs/cgroup"),
        )
    )  # fmt: skip
    boot.chmod(0o755)
    argv = [kernel, "mem=1200M", "rootfstype=hostfs", "rootflags=/", "ro", f"init={boot}", "cgroup_no_v1=all", "quiet"]
    process = subprocess.Popen(
        [*argv, "con=null", "con0=fd:0,fd:1", f"umid={tmp_path.name}"], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        env={"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PATH": os.defpath},
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=400)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert "the suite ended with 0" in said, said
    for sandbox in ("none", "bubblewrap"):
        assert len(re.findall(rf"^PASSED \S+\[{sandbox}\]", said, re.MULTILINE)) >= 8, said
    assert re.findall(r"^/sys/fs/cgroup\S*", said, re.MULTILINE) == [f"{UNIT}/kici-agent"] * bool(unit), said
