"""The system calls that a job is refused: a filter as the kernel reads it, for bubblewrap's `--seccomp`.

A job without capabilities is refused most of these anyway. The filter keeps it from the kernel's code behind them,
where the holes are, and it is all that stands before the terminal's input queue and the kernel's keyrings. What a
debugger needs (`ptrace`, `process_vm_readv`) stays: a job sees no processes but its own.

Made here and not by libseccomp, which a host may lack: the list is short and the numbers never change (a test
holds them against libseccomp's). A call that the list does not name costs nothing: the kernel remembers that it passes.
"""

from __future__ import annotations

import errno
import functools
import struct
from collections.abc import Iterator, Mapping
from typing import Final, Literal

from kici.agent.sandbox.contract import SandboxUnavailable

Profile = Literal["steps", "image-build"]

REFUSED: Final[Mapping[str, int]] = dict.fromkeys(
    (
        "add_key", "request_key", "keyctl",
        "mount", "umount2", "pivot_root",
        "bpf", "perf_event_open", "userfaultfd",
        "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot",
        "open_by_handle_at", "lookup_dcookie", "quotactl", "quotactl_fd", "acct", "swapon", "swapoff",
        "syslog", "vhangup", "settimeofday", "clock_settime", "clock_adjtime", "iopl", "ioperm",
    ),
    errno.EPERM,
) | dict.fromkeys(
    # As a kernel that does not have them: programs fall back to the older call, or do without.
    (
        "open_tree", "open_tree_attr", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr",
        "io_uring_setup", "io_uring_enter", "io_uring_register",
        "clone3",  # its flags are in memory, where no filter sees them: libraries fall back to clone
    ),
    errno.ENOSYS,
)  # fmt: skip
"""Call → what it answers."""
IMAGE_BUILD_MAY: Final = frozenset({"mount", "umount2", "pivot_root"})
REFUSED_IOCTLS: Final[Mapping[str, int]] = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C}
"""They put input into a terminal, as if it were typed there."""
NEW_USER_NAMESPACE: Final = 0x1000_0000
"""CLONE_NEWUSER, refused to `clone` and `unshare`: in a namespace of its own a job would have every capability."""

# Call → its numbers on x86-64 and, with the kernel's generic table, on aarch64; None = it has none there.
_NUMBERS: Final[Mapping[str, tuple[int, int | None]]] = {
    "acct": (163, 89), "add_key": (248, 217), "bpf": (321, 280), "clock_adjtime": (305, 266),
    "clock_settime": (227, 112), "clone": (56, 220), "clone3": (435, 435),
    "delete_module": (176, 106), "finit_module": (313, 273),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433),
    "init_module": (175, 105), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "ioctl": (16, 29), "ioperm": (173, None), "iopl": (172, None),
    "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219), "lookup_dcookie": (212, 18),
    "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429), "open_by_handle_at": (304, 265),
    "open_tree": (428, 428), "open_tree_attr": (467, 467), "perf_event_open": (298, 241), "pivot_root": (155, 41),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "reboot": (169, 142), "request_key": (249, 218),
    "settimeofday": (164, 170), "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116),
    "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282), "vhangup": (153, 58),
}  # fmt: skip
ARCHITECTURES: Final[Mapping[str, tuple[int, int]]] = {"x86_64": (0xC000_003E, 0), "aarch64": (0xC000_00B7, 1)}
"""Machine → its AUDIT_ARCH, its column above."""
_X32 = 0x4000_0000
_SKIPPED = 0xFFFF_FFFF
"""Number of a call that a debugger has taken away."""

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW, _ERRNO, _KILL = 0x7FFF_0000, 0x0005_0000, 0x8000_0000


def numbers(machine: str) -> dict[str, int]:
    """Of every call that the filter looks at."""
    _, column = ARCHITECTURES[machine]
    return {name: number for name, both in _NUMBERS.items() if (number := both[column]) is not None}


def refused(profile: Profile) -> dict[str, int]:
    """Call → errno."""
    return {name: code for name, code in REFUSED.items() if profile == "steps" or name not in IMAGE_BUILD_MAY}


@functools.cache
def build(profile: Profile, machine: str) -> bytes:
    """`machine` is what `uname -m` says. Raises `SandboxUnavailable` for one whose calls are not known here."""
    if machine not in ARCHITECTURES:
        raise SandboxUnavailable(f"there is no seccomp filter for {machine}, only for {', '.join(ARCHITECTURES)}")
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in _program(profile, machine))


def _program(profile: Profile, machine: str) -> Iterator[tuple[int, int, int, int]]:
    """Code, how many to skip if true and if not, operand."""
    number = numbers(machine)
    yield (_LOAD, 0, 0, _ARCHITECTURE_AT)
    yield from _when(_IF_EQUAL, ARCHITECTURES[machine][0], _KILL, otherwise=True)  # 32-bit programs
    yield (_LOAD, 0, 0, _NUMBER_AT)
    yield from _when(_IF_EQUAL, _SKIPPED, _ALLOW)
    yield from _when(_IF_AT_LEAST, _X32, _ERRNO | errno.ENOSYS)
    for name, code in refused(profile).items():
        if name in number:
            yield from _when(_IF_EQUAL, number[name], _ERRNO | code)
    # An argument's lower half, which is all that the kernel reads of these two: so nothing hides in the upper one.
    yield from _of(
        number["ioctl"], 1, *(_when(_IF_EQUAL, value, _ERRNO | errno.EPERM) for value in REFUSED_IOCTLS.values())
    )
    for name in ("clone", "unshare"):
        yield from _of(number[name], 0, _when(_IF_ANY_BIT, NEW_USER_NAMESPACE, _ERRNO | errno.EPERM))
    yield (_RETURN, 0, 0, _ALLOW)


_Instructions = list[tuple[int, int, int, int]]


def _when(test: int, operand: int, answer: int, *, otherwise: bool = False) -> _Instructions:
    return [(test, int(otherwise), int(not otherwise), operand), (_RETURN, 0, 0, answer)]


def _of(number: int, argument: int, *checks: _Instructions) -> _Instructions:
    """Checks of one call's argument; the call passes if none of them answers."""
    inside = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument), *(one for check in checks for one in check)]
    inside.append((_RETURN, 0, 0, _ALLOW))
    return [(_IF_EQUAL, 0, len(inside), number), *inside]
