"""What of the repository a job finds: how much history, submodules, LFS, which directories."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from kici.sdk.problems import refuse
from kici.sdk.values import checked_directory, checked_flag

MAX_DEPTH = 1_000_000
MAX_SPARSE = 100


class Checkout(Struct, frozen=True, kw_only=True):
    """For `checkout=` of a job: `Checkout(depth=0)`. What is left out is as with `checkout=True`."""

    depth: int = 1
    """Commits of history; 0 is all of it, with all branches, so that `git merge-base origin/main HEAD` works."""
    submodules: bool | Literal["recursive"] = False
    """True: those of the repository; `"recursive"`: theirs too."""
    lfs: bool = False
    """Fetch the files that Git LFS keeps, instead of leaving their pointers."""
    sparse: str | tuple[str, ...] | list[str] = ()
    """Only these directories, and the files at the top of the repository and beside the way to them."""
    tags: bool = False
    """All tags; else only those that point at what is fetched."""


def checked_checkout(subject: str, value: object) -> bool | Checkout:
    if not isinstance(value, Checkout):
        if not isinstance(value, bool):
            refuse(subject, f"checkout is {value!r}: write True, False or Checkout(depth=0)")
        return bool(value)
    subject = f"{subject}: checkout"
    return Checkout(
        depth=_checked_depth(subject, value.depth),
        submodules=_checked_submodules(subject, value.submodules),
        lfs=checked_flag(subject, "lfs", value.lfs),
        sparse=_checked_sparse(subject, value.sparse),
        tags=checked_flag(subject, "tags", value.tags),
    )


def _checked_depth(subject: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_DEPTH:
        return value
    refuse(subject, f"depth is {value!r}: write a number of commits, or 0 for the whole history")
    return 1


def _checked_submodules(subject: str, value: object) -> bool | Literal["recursive"]:
    if value == "recursive":
        return "recursive"
    if not isinstance(value, bool):
        refuse(subject, f'submodules is {value!r}: write True, False or "recursive"')
    return bool(value)


def _checked_sparse(subject: str, value: object) -> tuple[str, ...]:
    several = (value,) if isinstance(value, str) else value
    if not isinstance(several, (list, tuple)) or len(several) > MAX_SPARSE:
        refuse(subject, f'sparse is {value!r}: write up to {MAX_SPARSE} directories, such as sparse=("src/app",)')
        return ()
    found = []
    for one in several:
        directory = checked_directory(subject, "sparse", one)
        if directory is None:
            continue
        if any(character in '*?[]"' or not character.isprintable() for character in directory):
            refuse(subject, f"sparse: {directory!r} is no directory: this takes no patterns")
        else:
            found.append(directory.strip("/"))
    return tuple(found)
