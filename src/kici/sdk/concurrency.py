"""How many jobs or runs of one group may run at a time."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from kici.sdk.problems import refuse
from kici.sdk.values import checked_flag, checked_template, one_of

Pending: TypeAlias = Literal["keep-latest", "queue"]


class Concurrency(Struct, frozen=True):
    group: str
    cancel_in_progress: bool
    max: int
    pending: Pending


def concurrency(
    group: str, *, cancel_in_progress: bool = False, max: int = 1, pending: Pending = "keep-latest"
) -> Concurrency:
    """At most `max` at a time in the group, which is a template such as `"deploy-{branch}"`.

    What comes while the group is full waits: with `keep-latest` only the newest, the others are cancelled; with `queue`
    all of them, in the order of arrival. `cancel_in_progress` cancels what runs instead.
    """
    subject = "concurrency(…)"
    if not isinstance(max, int) or isinstance(max, bool) or max < 1:
        refuse(subject, f"max is {max!r}: write a whole number from 1")
        max = 1
    if not one_of(subject, "pending", pending, ("keep-latest", "queue")):
        pending = "keep-latest"
    name = checked_template(subject, "group", group)
    if name is None or not name.strip():
        refuse(subject, 'its group is empty: write for example "deploy-{branch}"')
        name = "?"
    return Concurrency(name, checked_flag(subject, "cancel_in_progress", cancel_in_progress), max, pending)


def checked_concurrency(subject: str, value: object) -> Concurrency | None:
    """A group's name is short for `concurrency(name)`."""
    if value is None or isinstance(value, Concurrency):
        return value
    if isinstance(value, str):
        return concurrency(value)
    checked_template(subject, "concurrency", value)  # says what is wrong
    return None
