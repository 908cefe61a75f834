"""What a hostile job tries, under bubblewrap in both profiles and in a container; and that each of it works without a
sandbox.

`none` keeps the life of a box and little else. What it does not keep is expected here, strictly: if it came to keep
one, its docstring and the operator's page would have to say so.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can lay this out")


async def run(boxes: Any, program: str, **options: Any) -> Any:
    """A Python program in the runner's place; what it tells by `tell(…)`."""
    head = (
        "import ctypes, errno, json, mmap, os, socket, struct, sys\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "def tell(what): os.write(3, json.dumps(what).encode())\n"
        "def tried(act, *given):\n    try: act(*given)\n"
        "    except OSError as error: return errno.errorcode[error.errno]\n    return 'did'\n"
    )
    async with boxes.running("", argv=[boxes.python, "-I", "-c", head + program], **options) as boxed:
        said = await boxed.said()
        assert said, boxed.box.last_words()
        return json.loads(said)


# ── the agent and its secrets ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[str]]:
    """A process of the agent's user with a token in its memory, as the agent or another job's runner."""
    program = "import sys; token = bytearray(b'kat_' + b'S3CRET'); print(id(token), flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-I", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={"KICI_AGENT_TOKEN": "kat_S3CRET"},
    ) as process:  # fmt: skip
        assert process.stdout
        process.stdout.readline()
        yield process
        process.kill()


REACH = """
pid, found = PID, []
def look(name, act, *given):
    if tried(act, *given) == 'did': found.append(name)
def contains(path):
    if b'kat_S3CRET' not in open(path, 'rb').read(): raise OSError(errno.ENOENT, 'not there')
def memory():
    for line in open(f'/proc/{pid}/maps'):
        if line.split()[1].startswith('rw'):
            begin, end = (int(one, 16) for one in line.split()[0].split('-'))
            part = os.pread(os.open(f'/proc/{pid}/mem', os.O_RDONLY), end - begin, begin)
            if b'kat_S3CRET' in part: return
    raise OSError(errno.ENOENT, 'not there')
def call(answer):
    if answer < 0: raise OSError(ctypes.get_errno(), 'refused')
look('environ', contains, f'/proc/{pid}/environ')
look('memory', memory)
look('descriptors', os.listdir, f'/proc/{pid}/fd')
look('root', os.listdir, f'/proc/{pid}/root/')
look('signal', os.kill, pid, 0)
look('ptrace', lambda: call(libc.ptrace(0x4206, pid, 0, 0)))
look('pidfd_open', lambda: call(libc.syscall(434, pid, 0)))
look('priority', os.setpriority, os.PRIO_PROCESS, pid, 19)
tell(found)
"""
REACHED = {"environ", "memory", "descriptors", "root", "signal", "ptrace", "pidfd_open", "priority"}


async def test_the_agent_and_other_jobs_runners_cannot_be_looked_into(
    isolated: Any, victim: subprocess.Popen[str]
) -> None:
    """By their number on the host, which a job could guess."""
    assert await run(isolated, REACH.replace("PID", str(victim.pid))) == []


async def test_none_does_not_keep_the_agent_s_memory(none: Any, victim: subprocess.Popen[str]) -> None:
    found = set(await run(none, REACH.replace("PID", str(victim.pid))))
    assert found >= REACHED - {"memory", "ptrace"}
    if os.geteuid() == 0 or Path("/proc/sys/kernel/yama/ptrace_scope").exists() is False:
        assert found == REACHED


async def test_none_does_not_keep_the_agent_s_files(none: Any, base: Path) -> None:
    (base / "token").write_text("kat_secret")
    assert await none.said(f"cat {base}/token; echo changed > {base}/token") == "kat_secret"
    assert (base / "token").read_text() == "changed\n"


async def test_none_does_not_keep_namespaces_apart(none: Any) -> None:
    said = await none.said("for n in pid ipc uts mnt user net; do echo $n $(readlink /proc/self/ns/$n); done")
    assert all(inside == os.readlink(f"/proc/self/ns/{name}") for name, inside in map(str.split, said.splitlines())), (
        said
    )


async def test_none_does_not_take_the_network_away(none: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = f"(exec 4<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}) && echo reached"
        assert await none.said(script, network=False) == "reached\n"


async def test_none_has_no_seccomp_filter(none: Any) -> None:
    """It would be none: the job could have the agent, which has none, make the call."""
    assert "Seccomp:\t0" in await none.said("grep Seccomp: /proc/self/status")


# ── sockets, shared memory, messages ─────────────────────────────────────────────────────────────────────────────────


ABSTRACT = "tell(tried(socket.socket(socket.AF_UNIX).connect, '\\0kici-test-' + str({pid})))"


@pytest.fixture
def abstract() -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0kici-test-{os.getpid()}")
        server.listen()
        yield


async def test_without_a_network_no_abstract_socket_is_reached(isolated: Any, abstract: None) -> None:
    assert await run(isolated, ABSTRACT.format(pid=os.getpid()), network=False) == "ECONNREFUSED"


@pytest.mark.parametrize("boxes", ["none", "bubblewrap", "image-build", "container"], indirect=True)
async def test_with_the_host_s_network_abstract_sockets_of_the_host_are_reached(boxes: Any, abstract: None) -> None:
    """They belong to the network: the operator's page says so."""
    assert await run(boxes, ABSTRACT.format(pid=os.getpid()), network=True) == "did"


SHARED_MEMORY = "tell('did' if libc.shmget(KEY, 0, 0) >= 0 else errno.errorcode[ctypes.get_errno()])"


@pytest.fixture
def shared_memory() -> Iterator[int]:
    """The key of a System V segment that every user may attach."""
    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x6B69_0000 + os.getpid() % 0xFFFF
    made = libc.shmget(key, 4096, 0o1666)
    assert made >= 0
    yield key
    libc.shmctl(made, 0, None)


async def test_shared_memory_of_the_host_is_not_there(isolated: Any, shared_memory: int) -> None:
    assert await run(isolated, SHARED_MEMORY.replace("KEY", str(shared_memory))) == "ENOENT"


async def test_none_does_not_keep_shared_memory_apart(none: Any, shared_memory: int) -> None:
    assert await run(none, SHARED_MEMORY.replace("KEY", str(shared_memory))) == "did"


async def test_shared_memory_and_message_queues_of_another_job_are_not_there(isolated: Any) -> None:
    look = "[sum(1 for _ in open('/proc/sysvipc/' + kind)) - 1 for kind in ('shm', 'msg')]"
    make = (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        "assert min(libc.shmget(0, 4096, 0o1666), libc.msgget(0, 0o1666)) >= 0\n"
        f"os.write(3, str({look}).encode() + b'\\n')\nos.read(3, 1)"
    )
    async with isolated.running("", slot=1, argv=[isolated.python, "-I", "-c", make]) as other:
        assert await other.line() == "[1, 1]"
        assert await run(isolated, f"tell({look})") == [0, 0]


# ── becoming somebody else ───────────────────────────────────────────────────────────────────────────────────────────


@root_only
async def test_a_setuid_program_in_the_job_s_directory_gives_nothing(isolated: Any) -> None:
    """Laid there by the host's root, as a checkout or cache that the agent unpacked would."""
    program = isolated.root() / "src" / "id"
    shutil.copy("/usr/bin/id", program)
    program.chmod(0o6755)
    assert program.stat().st_mode & stat.S_ISUID
    said = await isolated.said("./id -u; id -u; ./id -g; id -g; ./id -ru")
    with_bit, without, group, usual, real = said.split()
    assert (with_bit, group) == (without, usual)
    assert real == without


@root_only
async def test_a_setuid_program_that_an_image_build_makes_is_nobody_on_the_host(image_build: Any) -> None:
    """Root of the namespace is the slot's user, and no other user passes through the job's directory."""
    assert await image_build.said("cp /bin/bash own; chmod 6755 own; echo made") == "made\n"
    made = (image_build.root() / "src" / "own").stat()
    assert (made.st_uid, made.st_gid) == (image_build.sandbox.owner(0), image_build.sandbox.owner(0))


@root_only
async def test_device_nodes_cannot_be_made_or_used(isolated: Any) -> None:
    os.mknod(isolated.root() / "src" / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.chmod(isolated.root() / "src" / "null", 0o666)
    program = (
        "tell([tried(open, '/work/src/null', 'rb'), tried(os.mknod, '/work/src/made', 0o20666, os.makedev(1, 3)),"
        " tried(os.mknod, '/work/src/disk', 0o60666, os.makedev(254, 0)), sorted(os.listdir('/dev'))])"
    )
    opened, made, disk, devices = await run(isolated, program)
    assert (opened, made, disk) == ("EACCES", "EPERM", "EPERM")
    assert set(devices) <= {
        "console", "core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty",
        "urandom", "zero", *(["mqueue"] if isolated.sandbox.name == "container" else []),
    }  # fmt: skip


async def test_nothing_foreign_can_be_hard_linked_into_the_job_s_directory(isolated: Any) -> None:
    (isolated.root() / "kici" / "locked").write_text("locked")
    program = (
        "tell([tried(os.link, source, f'/work/src/link{n}') for n, source in"
        " enumerate(['/usr/bin/env', '/etc/passwd', '/work/kici/locked', sys.executable, '/proc/1/exe'])])"
    )
    assert set(await run(isolated, program)) <= {"EXDEV", "EPERM", "EACCES"}


async def test_programs_that_run_cannot_be_overwritten(isolated: Any) -> None:
    program = (
        "tell([tried(os.open, path, os.O_WRONLY) for path in"
        " ['/proc/self/exe', '/proc/1/exe', sys.executable, '/usr/bin/env', '/bin/sh', '/proc/2/exe']])"
    )
    *there, second = await run(isolated, program)
    assert {*there} <= {"EROFS", "ETXTBSY", "EACCES", "EPERM"}
    assert second in {"EROFS", "ETXTBSY", "EACCES", "EPERM", "ENOENT"}  # a container may have no second process


async def test_settings_of_the_kernel_cannot_be_written(isolated: Any) -> None:
    program = """
import pathlib
written = []
for top, _, files in os.walk('/proc/sys'):
    for name in files:
        path = os.path.join(top, name)
        # Those of its own IPC, UTS and network namespaces are a job's own.
        if not path.startswith(('/proc/sys/net/', '/proc/sys/fs/mqueue/', '/proc/sys/user/')):
            try:
                descriptor = os.open(path, os.O_WRONLY)
            except OSError:
                continue
            os.close(descriptor)
            written.append(path)
def masked(path):
    return os.path.exists(path) and os.stat(path).st_rdev == os.makedev(1, 3)
written += [p for p in ('/proc/sysrq-trigger', '/proc/kcore', '/proc/kmsg', '/proc/1/oom_score_adj', '/proc/acpi',
    '/proc/timer_list', '/proc/self/attr/exec')
    if p.count('/') == 2 and not masked(p) and tried(os.open, p, os.O_RDWR) == 'did']
tell(written)
"""
    found = await run(isolated, program)
    own = ("/proc/sys/kernel/sem", "/proc/sys/kernel/shm", "/proc/sys/kernel/msg", "/proc/sys/kernel/domainname",
           "/proc/sys/kernel/hostname", "/proc/sys/kernel/auto_msgmni", "/proc/sys/kernel/ns_last_pid",
           "/proc/sys/kernel/pid_max", "/proc/sys/vm/memfd_noexec")  # fmt: skip
    assert [path for path in found if not path.startswith(own)] == []
    if os.geteuid() == 0:  # all of a root agent's namespaces but the user's belong to the host's root
        assert set(found) <= {"/proc/sys/kernel/ns_last_pid"}  # everybody's to open; to write it takes a capability


async def test_a_job_that_swaps_its_directories_for_links_gets_nothing_of_the_host(isolated: Any, base: Path) -> None:
    """The links lead to nothing: what they name is not among its mounts."""
    outside = base / "outside"
    outside.mkdir()
    (outside / "file").write_text("the host's")
    before = (outside.stat().st_uid, outside.stat().st_mode)
    said = await isolated.said(
        f"cd /; for d in src home tmp; do mv /work/$d /work/old-$d && ln -s {outside} /work/$d; done 2>/dev/null; "
        f"cat /work/src/file {outside}/file 2>/dev/null; rm -rf /work/kici 2>/dev/null; ln -s /etc /work/kici; echo end"
    )
    assert said.endswith("end\n")
    assert "the host's" not in said
    assert (outside.stat().st_uid, outside.stat().st_mode) == before
    assert (outside / "file").read_text() == "the host's"


async def test_a_box_leaves_no_mount_behind(isolated: Any) -> None:
    async with isolated.running("mount -t tmpfs x /run 2>/dev/null; echo up; read -r x <&3") as boxed:
        assert await boxed.line() == "up"
        assert str(isolated.root()) not in Path("/proc/self/mountinfo").read_text()


# ── image builds ─────────────────────────────────────────────────────────────────────────────────────────────────────


CONTAINERFILE = """FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "sh", "-c", "busybox mkdir /etc /var; echo app:x:1000:1000::/:/bin/sh > /etc/passwd"]
RUN ["/bin/busybox", "sh", "-c", "busybox id -u; busybox touch /var/file; busybox chown 1000:50000 /var/file"]
RUN ["/bin/busybox", "sh", "-c", "busybox cat /agent-secret /etc/shadow; busybox mount -o remount,rw /; busybox true"]
USER 1000
RUN ["/bin/busybox", "id", "-u"]
"""


async def test_an_image_with_several_users_is_built_and_its_files_can_be_removed(image_build: Any) -> None:
    busybox = Path("/usr/bin/busybox") if Path("/usr/bin/busybox").exists() else Path("/bin/busybox")
    for program in ("buildah", str(busybox)):
        if shutil.which(program) is None:
            if os.environ.get("CI"):
                raise FileNotFoundError(f"{program} is not installed")
            pytest.skip(f"{program} is not installed")
    directory = image_build.root() / "src"
    (directory / "Containerfile").write_text(CONTAINERFILE)
    shutil.copy(busybox, directory / "busybox")
    script = (
        "export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs; B='buildah --root store --runroot run'; "
        "$B build --quiet --tag several . && $B push --quiet several oci-archive:/work/src/several.tar && echo built"
    )
    async with image_build.running(script) as boxed:
        said = await boxed.said(90)
        assert said.endswith("built\n"), said
        assert (directory / "several.tar").stat().st_size > 10_000
    subprocess.run(["chmod", "-R", "u+rwX", image_build.root()], check=True)  # an agent that is not root may, too
    shutil.rmtree(image_build.root())
