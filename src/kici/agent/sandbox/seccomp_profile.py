"""The list of `seccomp` for containers: the profile that podman would use anyway, with everything on our list refused.

podman reads a profile as JSON and makes the filter of it with libseccomp. Its own one names what is allowed; so a job
in a container is refused what either list refuses. Other architectures of the machine (32-bit programs, x32) are left
out: a program that makes their calls is ended by SIGSYS.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kici.agent.sandbox import seccomp
from kici.agent.sandbox.contract import SandboxUnavailable

_ALLOW, _REFUSE, _MASKED = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SCMP_CMP_MASKED_EQ"
_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_LOWER_HALF = 0xFFFF_FFFF
"""Of an argument: all that the kernel reads of those that we look at."""


class _Argument(Struct, frozen=True, rename="camel"):
    index: int
    value: int
    """Of `SCMP_CMP_MASKED_EQ`: the mask."""
    value_two: int = 0
    op: str = _MASKED


class _Rule(Struct, frozen=True, rename="camel", omit_defaults=True):
    names: tuple[str, ...]
    action: str
    errno_ret: int | None = None
    errno: str | None = None
    args: tuple[_Argument, ...] | None = None
    includes: dict[str, Any] = {}
    excludes: dict[str, Any] = {}


class _Profile(Struct, frozen=True, rename="camel", omit_defaults=True):
    default_action: str
    syscalls: tuple[_Rule, ...]
    default_errno_ret: int | None = None
    default_errno: str | None = None
    architectures: tuple[str, ...] = ()


def profile(base: Path, machine: str) -> bytes:
    """`base` is podman's own; `machine` is what `uname -m` says. Blocks. Raises `SandboxUnavailable`."""
    if machine not in _ARCHITECTURES:
        raise SandboxUnavailable(f"there is no seccomp profile for {machine}, only for {', '.join(_ARCHITECTURES)}")
    try:
        found = msgspec.json.decode(base.read_bytes(), type=_Profile)
        rules = tuple(_narrowed(found))
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise SandboxUnavailable(
            f"podman's seccomp profile {base} cannot be used: {error}. The package containers-common "
            "(golang-github-containers-common) has one that can"
        ) from error
    return msgspec.json.encode(replace(found, syscalls=rules, architectures=(_ARCHITECTURES[machine],)))


def _narrowed(base: _Profile) -> Iterator[_Rule]:
    """Raises `ValueError` for a profile that allows a call on conditions which cannot be joined with ours."""
    refused = seccomp.refused("steps")
    conditional = {"ioctl": tuple(_ioctls()), "clone": tuple(_namespaces()), "unshare": tuple(_namespaces())}
    for name, rules in conditional.items():
        given = [rule for rule in base.syscalls if name in rule.names and rule.action == _ALLOW]
        if base.default_action == _ALLOW or any(not rule.args and not rule.includes for rule in given):
            yield from (replace(rule, names=(name,)) for rule in rules)
        elif any(not _keeps(rule) for rule in given):
            raise ValueError(f"it allows {name} on conditions that are not known here")
        else:
            yield from (replace(rule, names=(name,)) for rule in given)
    for rule in base.syscalls:
        # What containers without capabilities do not get: else it would stand beside the refusal below.
        names = tuple(name for name in rule.names if name not in refused and name not in conditional)
        if names:
            yield replace(rule, names=names)
    for code in sorted(set(refused.values())):
        yield _Rule(tuple(name for name, its in refused.items() if its == code), _REFUSE, errno_ret=code)


def _keeps(rule: _Rule) -> bool:
    """Whether it allows `clone` or `unshare` without a new user namespace only, or never to a container of ours."""
    new = seccomp.NEW_USER_NAMESPACE
    return "caps" in rule.includes or any(
        one.index == 0 and one.op == _MASKED and one.value & new and not one.value_two & new for one in rule.args or ()
    )


def _ioctls() -> Iterator[_Rule]:
    values = tuple(seccomp.REFUSED_IOCTLS.values())
    for value in values:
        yield _Rule((), _REFUSE, errno_ret=errno.EPERM, args=(_Argument(1, _LOWER_HALF, value),))
    for mask, value in _others(values):
        yield _Rule((), _ALLOW, args=(_Argument(1, mask, value),))


def _namespaces() -> Iterator[_Rule]:
    new = seccomp.NEW_USER_NAMESPACE
    yield _Rule((), _REFUSE, errno_ret=errno.EPERM, args=(_Argument(0, new, new),))
    yield _Rule((), _ALLOW, args=(_Argument(0, new, 0),))


def _others(values: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Masks, and what is left under each: of a number's lower half one of them holds if it is none of `values`.

    The library has no "is none of these": it allows one comparison of an argument in each rule, and rules are joined by
    *or*. So: a bit that all values have alike is different, or the bits in which they differ are those of no value.
    """
    differing = reduce(or_, (value ^ values[0] for value in values))
    for bit in (1 << place for place in range(32)):
        if not bit & differing:
            yield bit, ~values[0] & bit
    under = differing
    while True:
        if under not in {value & differing for value in values}:
            yield differing, under
        if under == 0:
            return
        under = (under - 1) & differing
