"""Running the program `podman`: what it may see of our environment, and what its failures say."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from kici.agent.sandbox.contract import Limits, SandboxUnavailable

Pull = Literal["missing", "never", "always"]

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LABEL = "kici-agent"
_IMAGE = re.compile(
    r"[a-z0-9](?:[a-z0-9._/-]|:[0-9]{1,5}/)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_PASSED = re.compile(
    r"PATH|HOME|TMPDIR|XDG_\w+|DBUS_SESSION_BUS_ADDRESS|REGISTRY_AUTH_FILE|CONTAINERS_\w+|(?i:\w+_proxy)"
)
REMOVALS = 3
"""How often a removal is tried. podman's own clean-up, when a container's first process has ended, gets in its way."""
_QUICK_S = 60.0
_PULL_S = 1800.0


class Options(Struct, frozen=True):
    """What an agent's operator wants."""

    image: str
    agent: str
    """By this its containers are known: letters and digits, the same for each agent in this work directory."""
    pull: Pull = "missing"
    limits: Limits = Limits()


def program() -> str:
    found = shutil.which("podman")
    if found is None:
        raise SandboxUnavailable("podman is not installed: install the package `podman`")
    return found


def check_image(name: str) -> None:
    if not name:
        raise SandboxUnavailable("KICI_SANDBOX_IMAGE is not set: name the image that jobs run in")
    if len(name) > 512 or not _IMAGE.fullmatch(name):
        raise SandboxUnavailable(
            f"KICI_SANDBOX_IMAGE={name!r} is no name of an image, like docker.io/library/debian:12"
        )


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if _PASSED.fullmatch(name)}


def have_image(options: Options) -> None:
    """Pull it if that is wanted. Raises `SandboxUnavailable`."""
    present = _done("image", "exists", options.image).returncode == 0
    if options.pull == "always" or (options.pull == "missing" and not present):
        said("pull", "--quiet", options.image, timeout_s=_PULL_S)
    elif not present:
        raise SandboxUnavailable(f"the image {options.image} is not on this machine, and KICI_SANDBOX_PULL=never")


class Machine(Struct, frozen=True):
    """What podman says of the place it runs in."""

    controllers: frozenset[str]
    """Of control groups, those that it may give limits by."""
    seccomp: Path
    """Its profile."""


def machine() -> Machine:
    """Asks podman once: it takes half a second, and both the limits and the sandbox of an agent want to know.

    Raises `SandboxUnavailable`, also if podman has no seccomp, or a profile that is no file.
    """
    return _machine(program(), frozenset(environment().items()))


@functools.lru_cache(maxsize=1)
def _machine(podman: str, environment: frozenset[tuple[str, str]]) -> Machine:
    """The arguments are what the answer depends on; an error is not kept."""
    host = json.loads(said("info", "--format={{json .Host}}"))
    security = host.get("security") or {}
    if not security.get("seccompEnabled"):
        raise SandboxUnavailable("podman says that it has no seccomp here, without which jobs are not safe")
    profile = Path(security.get("seccompProfilePath") or "")
    if not profile.is_absolute():
        raise SandboxUnavailable(
            f"podman uses no file as its seccomp profile ({str(profile)!r}): install containers-common "
            "(golang-github-containers-common), or name one by `seccomp_profile` in containers.conf"
        )
    return Machine(frozenset(host.get("cgroupControllers") or ()), profile)


def image_environment(image: str) -> dict[str, str]:
    """What the image says that its programs are to have; a search path in any case."""
    told = json.loads(said("image", "inspect", "--format={{json .Config.Env}}", image)) or []
    return {"PATH": PATH} | dict(one.split("=", 1) for one in told if "=" in one)


def sweep(agent: str) -> list[str]:
    """Remove containers that this agent has left, when it was killed. Their ids."""
    left = said("ps", "--all", "--quiet", "--no-trunc", f"--filter=label={LABEL}={agent}").split()
    remove(left)
    return left


def remove(names: Collection[str]) -> None:
    if not names:
        return
    for tries_left in reversed(range(REMOVALS)):
        try:
            said("rm", "--force", "--time=0", "--ignore", *names)
        except SandboxUnavailable:
            if not tries_left:
                raise
        else:
            return


def said(*arguments: str, timeout_s: float = _QUICK_S) -> str:
    """What it wrote. Blocks. Raises `SandboxUnavailable` with podman's own words."""
    done = _done(*arguments, timeout_s=timeout_s)
    if done.returncode:
        raise SandboxUnavailable(f"podman {arguments[0]} failed ({done.returncode}): {done.stderr.strip()[-1000:]}")
    return done.stdout


def _done(*arguments: str, timeout_s: float = _QUICK_S) -> subprocess.CompletedProcess[str]:
    env: Mapping[str, str] = environment()
    try:
        return subprocess.run(
            [program(), *arguments], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SandboxUnavailable(f"podman {arguments[0]} was not done within {timeout_s:.0f} s") from None
