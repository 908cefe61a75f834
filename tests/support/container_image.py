"""An image for jobs, made of this machine's own programs: there is no registry. It is made once per test process."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAMS = [
    "bash",
    "sh",
    "cat",
    "chmod",
    "chroot",
    "cut",
    "env",
    "find",
    "grep",
    "head",
    "id",
    "ln",
    "ls",
    "mkdir",
    "mount",
    "readlink",
    "rm",
    "setsid",
    "sleep",
    "timeout",
    "tr",
    "true",
    "umount",
    "unshare",
    "whoami",
]
GLIBC = ("libpthread.so.0", "libdl.so.2", "librt.so.1", "libm.so.6", "libutil.so.1")
CONFIGURATION = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
"""Also for a machine without systemd, and without the right to raise limits."""


def skip_without_podman() -> None:
    missing = next((name for name in ("podman", "runc") if shutil.which(name) is None), None)
    if os.geteuid() != 0 and "XDG_RUNTIME_DIR" not in os.environ:
        pytest.skip("this user has no place for containers: XDG_RUNTIME_DIR is not set")
    if missing:
        if os.environ.get("CI"):
            pytest.fail(f"{missing} is not installed")
        pytest.skip(f"{missing} is not installed")


@contextlib.contextmanager
def made(directory: Path, *, without: str = "") -> Iterator[str]:
    """Its name. `without`: a program that it lacks."""
    before = os.environ.get("CONTAINERS_CONF")
    os.environ["CONTAINERS_CONF"] = str(directory / "containers.conf")
    (directory / "containers.conf").write_text(CONFIGURATION)
    name = f"localhost/kici-test:{os.getpid()}{without}"
    try:
        subprocess.run(["podman", "import", "--quiet", "-", name], input=_tar(without), check=True, capture_output=True)
        yield name
    finally:
        subprocess.run(["podman", "image", "rm", "--force", name], check=False, capture_output=True)
        del os.environ["CONTAINERS_CONF"]
        if before is not None:
            os.environ["CONTAINERS_CONF"] = before


def _tar(without: str) -> bytes:
    programs = [
        found for name in PROGRAMS if name != without and (found := shutil.which(name, path="/usr/bin:/bin:/usr/sbin"))
    ]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    modules = [str(path) for path in Path(sys.base_exec_prefix, "lib", version, "lib-dynload").glob("*.so")]
    libraries = {path for one in (*programs, os.path.realpath(sys.executable), *modules) for path in _libraries(one)}
    libc = Path(next(path for path in libraries if "/libc.so" in path)).parent
    libraries |= {str(libc / name) for name in GLIBC if (libc / name).exists()}
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", dereference=True) as tar:
        for place in ("etc", "tmp", "proc", "sys", "dev", "root", "home", "var/tmp", "work", "opt"):
            entry = tarfile.TarInfo(place)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        passwd = tarfile.TarInfo("etc/passwd")
        passwd.size, passwd.mode = len(b"root:x:0:0::/root:/bin/sh\n"), 0o644
        tar.addfile(passwd, io.BytesIO(b"root:x:0:0::/root:/bin/sh\n"))
        for path in programs:
            tar.add(path, f"usr/bin/{Path(path).name}")
            tar.add(path, f"bin/{Path(path).name}")
        for path in sorted(libraries):
            tar.add(path, path.lstrip("/"))
    return data.getvalue()


def _libraries(program: str) -> Iterator[str]:
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    for line in told.splitlines():
        words = [word for word in line.split() if word.startswith("/")]
        yield from words[:1]
