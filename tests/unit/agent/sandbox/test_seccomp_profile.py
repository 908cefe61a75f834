"""The profile for podman: read as libseccomp would, against the list that it is made of."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.agent.sandbox import seccomp, seccomp_profile
from kici.agent.sandbox.contract import SandboxUnavailable

OPEN = {"names": ["read", "ioctl", "clone", "unshare", "keyctl", "mount"], "action": "SCMP_ACT_ALLOW"}
BASE: dict[str, Any] = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "defaultErrnoRet": 38,
    "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]}],
    "syscalls": [
        OPEN,
        {"names": ["bpf", "setns"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
        {"names": ["bpf", "setns"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "excludes": {"caps": ["CAP_SYS_ADMIN"]}},
    ],
}


def made(directory: Path, base: Any, machine: str = "x86_64") -> dict[str, Any]:
    (directory / "base.json").write_text(base if isinstance(base, str) else json.dumps(base))
    found: dict[str, Any] = json.loads(seccomp_profile.profile(directory / "base.json", machine))
    return found


def answers(profile: dict[str, Any], call: str, *arguments: int) -> set[tuple[str, int | None]]:
    """Of all rules that hold: the library takes one of them, so there must be one."""
    return {
        (rule["action"], rule.get("errnoRet"))
        for rule in profile["syscalls"]
        if call in rule["names"]
        and "includes" not in rule
        and all(arguments[one["index"]] & one["value"] == one["valueTwo"] for one in rule.get("args") or ())
    }


ALLOWED: set[tuple[str, int | None]] = {("SCMP_ACT_ALLOW", None)}
REFUSED: set[tuple[str, int | None]] = {("SCMP_ACT_ERRNO", errno.EPERM)}


def test_each_call_of_the_list_is_refused_as_in_the_filter_and_others_as_podman_says(tmp_path: Path) -> None:
    profile = made(tmp_path, BASE)
    for name, code in seccomp.REFUSED.items():
        assert answers(profile, name) == {("SCMP_ACT_ERRNO", code)}, name
    assert answers(profile, "read") == ALLOWED
    assert answers(profile, "setns") == REFUSED
    assert (profile["defaultAction"], profile["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 38)


def test_no_other_architecture_of_the_machine_is_left(tmp_path: Path) -> None:
    for machine, name in (("x86_64", "SCMP_ARCH_X86_64"), ("aarch64", "SCMP_ARCH_AARCH64")):
        profile = made(tmp_path, BASE, machine)
        assert profile["architectures"] == [name]
        assert "archMap" not in profile
    with pytest.raises(SandboxUnavailable, match="no seccomp profile for s390x"):
        made(tmp_path, BASE, "s390x")


NEAR = st.sampled_from(sorted(seccomp.REFUSED_IOCTLS.values())).flatmap(
    lambda value: st.integers(0, 63).map(lambda bit: value ^ 1 << bit)
)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return made(tmp_path_factory.mktemp("profile"), BASE)


@given(request=st.integers(0, 2**64 - 1) | NEAR | st.sampled_from(sorted(seccomp.REFUSED_IOCTLS.values())))
def test_an_ioctl_is_refused_by_the_half_of_its_number_that_the_kernel_reads(
    profile: dict[str, Any], request: int
) -> None:
    refused = request & 0xFFFF_FFFF in seccomp.REFUSED_IOCTLS.values()
    assert answers(profile, "ioctl", 0, request) == (REFUSED if refused else ALLOWED)


@given(flags=st.integers(0, 2**64 - 1))
def test_a_new_user_namespace_is_refused_and_other_flags_are_not(profile: dict[str, Any], flags: int) -> None:
    for call in ("clone", "unshare"):
        assert answers(profile, call, flags) == (REFUSED if flags & seccomp.NEW_USER_NAMESPACE else ALLOWED)


def test_what_podman_s_own_profile_narrows_itself_is_kept_if_it_refuses_what_we_do(tmp_path: Path) -> None:
    """As Docker's: no new namespace of any kind by `clone`, and no `unshare`."""
    narrow = [
        {"names": ["ioctl"], "action": "SCMP_ACT_ALLOW"},
        {"names": ["clone"], "action": "SCMP_ACT_ALLOW",
         "args": [{"index": 0, "value": 0x7E02_0000, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]},
        {"names": ["clone", "unshare"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
    ]  # fmt: skip
    profile = made(tmp_path, BASE | {"syscalls": narrow})
    assert answers(profile, "unshare", 0) == set()  # by default: refused
    assert answers(profile, "clone", 0) == ALLOWED
    assert answers(profile, "clone", 0x0002_0000) == answers(profile, "clone", seccomp.NEW_USER_NAMESPACE) == set()


def test_a_profile_that_allows_everything_else_has_the_list_too(tmp_path: Path) -> None:
    profile = made(tmp_path, {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": []})
    assert answers(profile, "keyctl") == answers(profile, "ioctl", 0, 0x5412) == REFUSED


@pytest.mark.parametrize(
    ("base", "why"),
    [
        (
            BASE | {"syscalls": [OPEN | {"args": [{"index": 1, "value": 5, "op": "SCMP_CMP_NE"}]}]},
            "it allows ioctl on conditions that are not known here",
        ),
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        ({"syscalls": []}, "missing required field `defaultAction`"),
    ],
)
def test_a_profile_that_cannot_be_joined_with_the_list_is_refused(tmp_path: Path, base: Any, why: str) -> None:
    with pytest.raises(SandboxUnavailable, match=f"base.json cannot be used: .*{why}"):
        made(tmp_path, base)


def test_a_profile_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match=r"absent.json cannot be used: .*No such file"):
        seccomp_profile.profile(tmp_path / "absent.json", "x86_64")
