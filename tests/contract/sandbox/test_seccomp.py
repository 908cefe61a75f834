"""The seccomp filter: attacked call by call from inside, beside a control that has no filter."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kici.agent.sandbox import seccomp
from kici.agent.sandbox.contract import SandboxUnavailable
from kici.agent.sandbox.seccomp import ARCHITECTURES, NEW_USER_NAMESPACE, REFUSED, REFUSED_IOCTLS, Profile

CALLS = {
    **{name: [-1] * 6 for name in (*REFUSED, "fspick")},
    "init_module": [0, 0, 0],
    "clone": [NEW_USER_NAMESPACE | 0x200, 0, 0, 0, 0],  # with CLONE_FS: no process comes of it in any case
    "unshare": [NEW_USER_NAMESPACE],
}
"""Arguments that do no harm, and that the kernel refuses for another reason than the filter's, or takes."""

PROGRAM = """
import ctypes, json, os, signal, sys
wanted, code = json.loads(sys.argv[1]), bytes.fromhex(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_void_p)]
if code:
    held = ctypes.create_string_buffer(code)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(Program(len(code) // 8, ctypes.addressof(held)))) == 0
found = {}
for name, (number, arguments) in wanted.items():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        ctypes.set_errno(0)
        answer = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
        os.write(write, str(ctypes.get_errno() if answer == -1 else 0).encode())
        os._exit(0)
    os.close(write)
    found[name] = int(os.read(read, 100) or -1)
    os.waitpid(child, 0)
os.write(int(sys.argv[3]), json.dumps(found).encode())
"""


def calls() -> dict[str, tuple[int, list[int]]]:
    number = seccomp.numbers(platform.machine())
    wanted = {name: (number[name], arguments) for name, arguments in CALLS.items() if name in number}
    for name, value in REFUSED_IOCTLS.items():
        # The kernel reads 32 bits of it: a filter that compares 64 is passed with any bit above.
        wanted[name] = (number["ioctl"], [0, value, 0])
        wanted[f"{name} with a bit above"] = (number["ioctl"], [0, value | 1 << 32, 0])
    return wanted


def expected(profile: Profile) -> dict[str, int]:
    answers = {name: seccomp.refused(profile).get(name, errno.EPERM) for name in calls()}
    return {name: code for name, code in answers.items() if profile == "steps" or name not in seccomp.IMAGE_BUILD_MAY}


def argv(code: bytes, descriptor: int, python: str = sys.executable) -> list[str]:
    return [python, "-I", "-c", PROGRAM, json.dumps(calls()), code.hex(), str(descriptor)]


def outside(code: bytes) -> dict[str, int]:
    ran = subprocess.run(argv(code, 1), stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=60)
    found: dict[str, int] = json.loads(ran.stdout)
    return found


async def inside(boxes: Any) -> dict[str, int]:
    async with boxes.running("", argv=argv(b"", 3, boxes.python)) as boxed:
        found: dict[str, int] = json.loads(await boxed.said())
    return found


async def test_every_call_of_the_list_is_refused_in_a_box(isolated: Any) -> None:
    found = await inside(isolated)
    wanted = expected(isolated.profile)
    assert {name: found[name] for name in wanted} == wanted
    if isolated.profile == "image-build":
        may = {name: found[name] for name in seccomp.IMAGE_BUILD_MAY}
        assert errno.ENOSYS not in may.values()
        assert (may["mount"], may["umount2"]) == (errno.EFAULT, errno.EINVAL)  # the kernel looked at the arguments


def test_it_is_the_filter_that_refuses_and_not_a_missing_privilege() -> None:
    """As the host's root, who may do all of it: with the filter as in a box, without it otherwise."""
    if os.geteuid() != 0:
        pytest.skip("a user is refused most of these calls anyway")
    with_filter, without = outside(seccomp.build("steps", platform.machine())), outside(b"")
    wanted = expected("steps")
    assert with_filter == wanted
    same = {name for name, code in without.items() if code == wanted[name]}
    assert same <= {"open_tree_attr"}, same  # which kernels before 6.15 do not have


async def test_without_the_filter_a_job_would_reach_the_keyrings_and_the_terminals_ioctls(stripped: Any) -> None:
    """Of a container podman's own filter is left, which refuses some of the list."""
    stripped.sandbox = stripped.unfiltered
    found = await inside(stripped)
    assert found["TIOCSTI"] == found["TIOCSTI with a bit above"] == errno.ENOTTY
    assert errno.EPERM not in (found["keyctl"], found["clone3"])
    if stripped.in_container:
        assert found["unshare"] == 0
    else:
        assert errno.EPERM not in (found["add_key"], found["request_key"])


async def test_nothing_can_be_typed_into_a_terminal(isolated: Any) -> None:
    """Into one of the job's own, which it may have: the control shows what the kernel itself says."""
    program = """
import errno, fcntl, os, pty, termios
child, master = pty.fork()
if child == 0:
    try:
        fcntl.ioctl(0, termios.TIOCSTI, b"x")
        said = "typed"
    except OSError as error:
        said = errno.errorcode[error.errno]
    os.write(3, said.encode())
    os._exit(0)
os.waitpid(child, 0)
"""
    async with isolated.running("", argv=[isolated.python, "-I", "-c", program]) as boxed:
        assert await boxed.said() == "EPERM"
    isolated.sandbox = isolated.unfiltered
    async with isolated.running("", argv=[isolated.python, "-I", "-c", program]) as boxed:
        assert await boxed.said() in ("typed", "EIO")  # EIO: dev.tty.legacy_tiocsti is 0


FOREIGN = """
import ctypes, mmap, os
def died(number):
    child = os.fork()
    if child == 0:
        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(bytes((0xB8, number, 0, 0, 0, 0xCD, 0x80, 0xC3)))  # mov eax, number; int 0x80; ret
        call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
        os._exit(0 if call() == os.getpid() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
libc = ctypes.CDLL(None, use_errno=True)
def x32():
    child = os.fork()
    if child == 0:
        answer = libc.syscall(ctypes.c_long(0x40000000 | 39))
        os._exit(ctypes.get_errno() if answer < 0 else 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
os.write(FD, f"{died(20)} {x32()}".encode())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other machines have one kind of calls")
async def test_calls_of_32_bit_programs_end_the_program(isolated: Any) -> None:
    control = subprocess.run(
        [sys.executable, "-I", "-c", FOREIGN.replace("FD", "1")], capture_output=True, text=True, check=True
    )
    assert control.stdout.split()[0] in ("0", "-11")  # -11: this kernel has no 32-bit calls
    async with isolated.running("", argv=[isolated.python, "-I", "-c", FOREIGN.replace("FD", "3")]) as boxed:
        x32 = "-31" if isolated.in_container else str(errno.ENOSYS)  # libseccomp takes it for one more architecture
        assert (await boxed.said()).split() == ["-31", x32]


async def test_every_process_that_a_job_can_trace_has_the_filter_too(isolated: Any) -> None:
    """Or it could have one without the filter make the call."""
    program = """
import ctypes, os
libc, reached, seen = ctypes.CDLL(None, use_errno=True), [], []
for name in filter(str.isdigit, os.listdir("/proc")):
    if int(name) != os.getpid():
        seen.append(name)
        if "\\nSeccomp:\\t2" in open(f"/proc/{name}/status").read():
            continue
        for file in ("mem", "environ", "maps", "root", "cwd", "fd/0", "fd/3", "ns/mnt"):
            try:
                open(f"/proc/{name}/{file}", "rb").close() if "/" not in file else os.readlink(f"/proc/{name}/{file}")
                reached.append((name, file))
            except OSError:
                pass
        if libc.ptrace(16, ctypes.c_long(int(name)), 0, 0) == 0:
            reached.append((name, "ptrace"))
        if libc.syscall(ctypes.c_long(438), libc.syscall(ctypes.c_long(434), int(name), 0), 0, 0) >= 0:
            reached.append((name, "pidfd_getfd"))
os.write(3, f"{len(seen) > 0} {reached}".encode())
"""
    async with isolated.running("", argv=[isolated.python, "-I", "-c", program]) as boxed:
        assert await boxed.said() == "True []"


PROGRAMS = {
    "python3": "python3 -c 'import multiprocessing as m; print(sum(m.Pool(2).map(abs, range(-3, 3))))' | grep -x 9",
    "threads": "python3 -c 'import threading; t = threading.Thread(target=print, args=(9,)); t.start(); t.join()'",
    "git": "git init -q r && git -C r -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git -C r gc -q",
    "bash": "bash -c 'coproc cat; echo 9 >&${COPROC[1]}; read -r x <&${COPROC[0]}; [[ $x = 9 ]]'",
    "node": 'node -e \'new (require("worker_threads").Worker)("process.exit(0)", {eval: true}); '
    'require("child_process").execFileSync("true"); require("fs").readFile("/etc/passwd", () => 0)\'',
    "uv": f"UV_OFFLINE=1 {shutil.which('uv', path=Path(sys.executable).parent) or 'uv'} venv -q --python $PYTHON v "
    "&& v/bin/python -c 'print(9)'",
    "gdb": "gdb -q -batch -ex run -ex bt --args /bin/true | grep 'exited normally'",
    "strace": "strace -f -o t sh -c 'true; true' && grep -q execve t",
}
IN_IMAGE = {"python3", "threads", "bash"}


@pytest.mark.parametrize("program", PROGRAMS)
async def test_programs_of_every_day_run_under_it(isolated: Any, program: str) -> None:
    if program in ("node", "gdb", "strace") and shutil.which(program) is None:
        pytest.skip(f"there is no {program} here")
    if isolated.in_container and program not in IN_IMAGE:
        pytest.skip(f"the image of these tests has no {program}")
    start = 'python3() { "$PYTHON" "$@"; }; ' if isolated.in_container else ""
    said = await isolated.said(f"export PYTHON={isolated.python}; {start}{PROGRAMS[program]} && echo well")
    assert said.endswith("well\n"), said


def test_the_numbers_are_those_of_libseccomp() -> None:
    path = ctypes.util.find_library("seccomp")
    if path is None:
        pytest.skip("libseccomp2 is not installed")
    resolve = ctypes.CDLL(path).seccomp_syscall_resolve_name_arch
    for machine, (architecture, _) in ARCHITECTURES.items():
        found = {name: resolve(ctypes.c_uint32(architecture), name.encode()) for name in seccomp.numbers(machine)}
        unknown = {name for name, number in found.items() if number == -1}  # to an older libseccomp
        assert unknown <= {"open_tree_attr", "mount_setattr", "quotactl_fd"}
        assert {name: number for name, number in seccomp.numbers(machine).items() if name not in unknown} == {
            name: number for name, number in found.items() if name not in unknown
        }


def test_each_refused_call_is_known_on_each_machine() -> None:
    for machine in ARCHITECTURES:
        missing = set(REFUSED) - set(seccomp.numbers(machine))
        assert missing <= {"iopl", "ioperm"}, machine


def test_image_builds_may_mount_and_nothing_else() -> None:
    assert set(seccomp.refused("steps")) - set(seccomp.refused("image-build")) == {"mount", "umount2", "pivot_root"}


def test_a_machine_whose_calls_are_not_known_is_named() -> None:
    with pytest.raises(SandboxUnavailable, match="no seccomp filter for s390x"):
        seccomp.build("steps", "s390x")
