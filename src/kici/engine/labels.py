"""Which agents may run a job."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from kici.engine.globs import is_glob
from kici.engine.lockfile import LockSandbox, Pattern, Regex
from kici.engine.patterns import matches, show

AUTOMATIC_PREFIXES = ("kici:os:", "kici:arch:", "kici:host:", "kici:sandbox:")
"""Labels that an agent gives itself; every token allows them."""
_OURS = "kici:"
_SHORT = {
    "linux": "kici:os:linux",
    "macos": "kici:os:macos",
    "windows": "kici:os:windows",
    "arm64": "kici:arch:arm64",
    "amd64": "kici:arch:amd64",
    "x64": "kici:arch:x64",
}
COMMON = frozenset(_SHORT.values())
"""Automatic labels of the machines that there are."""


class Requirement(Struct, frozen=True):
    labels: tuple[str, ...]
    """All of these, exactly. Sorted."""
    excludes: tuple[Pattern, ...] = ()
    """None that matches one of these."""
    patterns: tuple[Pattern, ...] = ()
    """For each of these some label that matches."""


def requirement(runs_on: Iterable[Pattern], exclude: Iterable[Pattern] = ()) -> Requirement:
    """Normalise what an author wrote: short names spelled out, exact labels and patterns told apart, sorted."""
    labels: set[str] = set()
    patterns: set[Pattern] = set()
    for wanted in runs_on:
        if isinstance(wanted, Regex) or is_glob(wanted):
            patterns.add(wanted)
        else:
            labels.add(_SHORT.get(wanted, wanted))
    excludes = {wanted if isinstance(wanted, Regex) else _SHORT.get(wanted, wanted) for wanted in exclude}
    return Requirement(tuple(sorted(labels)), tuple(sorted(excludes, key=show)), tuple(sorted(patterns, key=show)))


class Placed(Protocol):
    """What a job says of its agent: of the lock file, or as far as it was stored."""

    @property
    def runs_on(self) -> tuple[Pattern, ...]: ...
    @property
    def exclude_labels(self) -> tuple[Pattern, ...]: ...
    @property
    def sandbox(self) -> str | None: ...


def of_job(job: Placed) -> Requirement:
    """What its agent must offer, by `runs_on` and all else that the job says."""
    sandbox = (sandbox_label(job.sandbox),) if job.sandbox else ()
    return requirement((*job.runs_on, *sandbox), job.exclude_labels)


def sandbox_label(sandbox: str) -> str:
    return f"kici:sandbox:{sandbox}"


def of_sandbox(name: str, *, filtered: bool, image_builds: bool) -> tuple[str, ...]:
    """The labels that an agent gives itself for how it keeps jobs: the sandbox's name, whether bubblewrap filters
    system calls, and whether a job that asks may build images."""
    offered = [LockSandbox(name)]
    if name == LockSandbox.CONTAINER or (name == LockSandbox.BUBBLEWRAP and filtered):
        offered.append(LockSandbox.ISOLATED)
    if image_builds:
        offered.append(LockSandbox.IMAGE_BUILD)
    return tuple(map(sandbox_label, offered))


def key(wanted: Requirement) -> str:
    """The same for equal requirements, and only for those."""
    return hashlib.sha256(msgspec.json.encode(wanted)).hexdigest()


def missing(wanted: Requirement, labels: Collection[str]) -> tuple[str, ...]:
    """What keeps an agent with these labels from running the job, as an author would write it. Empty = nothing."""
    lacking = [label for label in wanted.labels if label not in labels]
    lacking += [show(pattern) for pattern in wanted.patterns if not any(matches([pattern], label) for label in labels)]
    unwanted = (pattern for pattern in wanted.excludes if any(matches([pattern], label) for label in labels))
    return (*lacking, *(f"not {show(pattern)}" for pattern in unwanted))


def satisfies(wanted: Requirement, labels: Collection[str]) -> bool:
    return not missing(wanted, labels)


def automatic(os: str, arch: str, host: str) -> tuple[str, ...]:
    """The labels that an agent gives itself, from `platform.system()`, `platform.machine()` and its host name."""
    systems = {"darwin": ("macos", "darwin"), "windows": ("windows", "win32")}.get(os.lower(), (os.lower(),))
    archs = {"x86_64": ("x64", "amd64"), "amd64": ("x64", "amd64"), "aarch64": ("arm64",)}.get(
        arch.lower(), (arch.lower(),)
    )
    return (
        *(f"kici:os:{name}" for name in systems),
        *(f"kici:arch:{name}" for name in archs),
        f"kici:host:{host}",
    )


def foreign(labels: Sequence[str], allowed: Collection[str] | None) -> tuple[str, ...]:
    """Labels that a token bounded to `allowed` does not grant. None = every label is granted but ours: one that is not
    automatic comes only with a token that names it."""
    return tuple(label for label in labels if not _is_granted(label, allowed))


def _is_granted(label: str, allowed: Collection[str] | None) -> bool:
    if label.startswith(AUTOMATIC_PREFIXES):
        return True
    return not label.startswith(_OURS) if allowed is None else label in allowed
