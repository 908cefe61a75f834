"""Steps that run at the same time."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from kici.sdk.problems import Location, call_site, refuse
from kici.sdk.steps import Step, StepLike, checked_steps
from kici.sdk.values import checked_flag, checked_name


class Group(Struct, frozen=True, eq=False):
    """What authors write in `steps`. Make one by `parallel`."""

    name: str
    """Empty: the job numbers it."""
    steps: tuple[Step[Any], ...]
    fail_fast: bool
    max_parallel: int | None
    location: Location


class Parallel(Struct, frozen=True):
    """A group in its job: a run of the job's steps."""

    name: str
    first: int
    """Place of its first step among the job's, from 0."""
    size: int
    fail_fast: bool
    max_parallel: int | None

    def __contains__(self, index: int) -> bool:
        return self.first <= index < self.first + self.size


def parallel(
    *steps: StepLike, fail_fast: bool = True, max_parallel: int | None = None, name: str | None = None
) -> Group:
    """Steps of a job that run at the same time; the next step of the job starts when all have ended.

    With `fail_fast` the first failure cancels the others. What they set in the environment counts after the group. They
    cannot read what the others of the group return.
    """
    subject = f"parallel {name!r}" if name else "parallel(…)"
    location = call_site()
    if any(isinstance(one, Group) for one in steps):
        refuse(subject, "there is a group inside the group: write its steps beside the others")
    found = checked_steps(subject, [one for one in steps if not isinstance(one, Group)], location)
    if not found:
        refuse(subject, "it has no steps: write parallel(first, second)")
    if max_parallel is not None and (not isinstance(max_parallel, int) or max_parallel < 1 or max_parallel is True):
        refuse(subject, f"max_parallel is {max_parallel!r}: write a whole number from 1, or leave it out")
        max_parallel = None
    return Group(
        name=checked_name(subject, name) if name is not None else "",
        steps=found,
        fail_fast=checked_flag(subject, "fail_fast", fail_fast),
        max_parallel=max_parallel,
        location=location,
    )


def flattened(subject: str, steps: object, location: Location) -> tuple[tuple[Step[Any], ...], tuple[Parallel, ...]]:
    """What authors write in a job's `steps`: all steps in their order, and which of them form groups."""
    if isinstance(steps, Group):
        steps = [steps]
    if not isinstance(steps, (list, tuple)):
        return checked_steps(subject, steps, location), ()
    flat: list[Any] = []
    groups: list[Parallel] = []
    for one in steps:
        if isinstance(one, Group):
            name = one.name or f"parallel-{len(groups) + 1}"
            groups.append(Parallel(name, len(flat), len(one.steps), one.fail_fast, one.max_parallel))
            flat += one.steps
        else:
            flat.append(one)
    return checked_steps(subject, flat, location), tuple(groups)
