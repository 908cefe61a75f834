"""Triggers for what comes from kici itself, from the clock, or from a generic source.

They exist once the workflow has reached the default branch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from kici.sdk.problems import refuse
from kici.sdk.triggers import Choice, Trigger, Words, checked_choice, checked_inputs
from kici.sdk.values import checked_words

WorkflowStatus: TypeAlias = Literal["success", "failed", "cancelled"]
JobStatus: TypeAlias = Literal[
    "success", "failed", "cancelled", "skipped", "timed_out_stale", "drift_dropped", "infra_lost"
]
LifecycleEvent: TypeAlias = Literal["workflow_complete", "job_complete", "job_failed"]

Value: TypeAlias = "str | int | float | bool | re.Pattern[str] | None"
"""Equal to it; a regular expression is searched for in a text."""
Match: TypeAlias = "Mapping[str, Value | Sequence[Value]]"
"""Path in the payload (`$.a.b[0]["c"]`) → what must stand there; of a list any one."""
Matches: TypeAlias = "tuple[tuple[str, tuple[Any, ...]], ...]"

NOT_PRODUCED = "registration_updated"


class GenericWebhook(Trigger, frozen=True):
    source: str
    events: tuple[str, ...]
    match: Matches = ()
    not_: Matches = ()


class KiciEvent(Trigger, frozen=True):
    name: str
    match: Matches
    not_: Matches
    source: tuple[str, ...]


class WorkflowComplete(Trigger, frozen=True):
    name: tuple[str, ...]
    status: tuple[str, ...]
    source: tuple[str, ...]


class JobComplete(Trigger, frozen=True):
    workflow: tuple[str, ...]
    job: tuple[str, ...]
    status: tuple[str, ...]
    source: tuple[str, ...]


class Schedule(Trigger, frozen=True):
    cron: str
    tz: str
    inputs: type[Any] | None


class Lifecycle(Trigger, frozen=True):
    events: tuple[str, ...]
    sources: tuple[str, ...]


def generic_webhook(
    source: str, *, events: Words = (), match: Match | None = None, not_: Match | None = None
) -> GenericWebhook:
    """A delivery to a generic source of the orchestrator, by the name that `kici-admin source add` gave it.

    Everything in `match` must be so in the payload, nothing of `not_`: `match={"$.issue.state": ["open", "new"]}`. A
    path that leads nowhere fails `match` and passes `not_`.
    """
    if not isinstance(source, str) or not source.strip():
        refuse("generic_webhook(…)", f"source is {source!r}: write the name of the orchestrator's source")
        source = "?"
    return GenericWebhook(
        source,
        checked_words("generic_webhook(…)", "events", events),
        _matches("generic_webhook(…)", "match", match),
        _matches("generic_webhook(…)", "not_", not_),
    )


def kici_event(name: str, *, match: Match | None = None, not_: Match | None = None, source: Words = ()) -> KiciEvent:
    """An event that a step sent with `ctx.emit(name, payload)`; `source` are repositories, as `owner/name`.

    `match` and `not_` are about the payload, as of `generic_webhook`.
    """
    if not isinstance(name, str) or not name.strip():
        refuse("kici_event(…)", f"name is {name!r}: write the name that ctx.emit(…) gives the event")
        name = "?"
    return KiciEvent(
        name,
        _matches("kici_event(…)", "match", match),
        _matches("kici_event(…)", "not_", not_),
        checked_words("kici_event(…)", "source", source),
    )


def workflow_complete(name: Words = (), *, status: Choice[WorkflowStatus] = (), source: Words = ()) -> WorkflowComplete:
    """The end of a run of these workflows. Its own ends do not start a workflow again, unless `name` says its name."""
    return WorkflowComplete(
        checked_words("workflow_complete(…)", "name", name),
        checked_choice("workflow_complete(…)", "status", status, get_args(WorkflowStatus)),
        checked_words("workflow_complete(…)", "source", source),
    )


def job_complete(
    *, workflow: Words = (), job: Words = (), status: Choice[JobStatus] = (), source: Words = ()
) -> JobComplete:
    """The end of one of these jobs. A workflow's own jobs do not start it again, unless `workflow` says its name."""
    return JobComplete(
        checked_words("job_complete(…)", "workflow", workflow),
        checked_words("job_complete(…)", "job", job),
        checked_choice("job_complete(…)", "status", status, get_args(JobStatus)),
        checked_words("job_complete(…)", "source", source),
    )


def schedule(cron: str, *, tz: str = "UTC", inputs: type[Any] | None = None) -> Schedule:
    """By the clock: `schedule("0 6 * * MON-FRI", tz="Europe/Berlin")`.

    Minute, hour, day of the month, month, day of the week. `inputs` as of `dispatch`; here every one needs a default.
    """
    if not isinstance(cron, str) or not cron.strip():
        refuse("schedule(…)", f'cron is {cron!r}: write five fields, such as "0 6 * * MON-FRI"')
        cron = "0 0 * * *"
    if not isinstance(tz, str) or not tz.strip():
        refuse("schedule(…)", f'tz is {tz!r}: write a time zone such as "Europe/Berlin", or leave it out for UTC')
        tz = "UTC"
    return Schedule(" ".join(cron.split()), tz, checked_inputs("schedule(…)", inputs))


def lifecycle(events: Choice[LifecycleEvent], *, sources: Words = ()) -> Lifecycle:
    """The end of any workflow or job of these repositories, except the workflow's own."""
    wanted = checked_words("lifecycle(…)", "events", events)
    if NOT_PRODUCED in wanted:
        refuse("lifecycle(…)", f"events: nothing tells of {NOT_PRODUCED!r} in this version: leave it out")
        wanted = tuple(one for one in wanted if one != NOT_PRODUCED)
    elif not wanted:
        refuse("lifecycle(…)", f"events is empty: write some of {', '.join(get_args(LifecycleEvent))}")
    return Lifecycle(
        checked_choice("lifecycle(…)", "events", wanted, get_args(LifecycleEvent)),
        checked_words("lifecycle(…)", "sources", sources),
    )


def _matches(subject: str, option: str, value: object) -> Matches:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        refuse(subject, f'{option} is {value!r}: write {{"$.path": value}}')
        return ()
    found = []
    for path, expected in value.items():
        several = tuple(expected) if isinstance(expected, (list, tuple)) else (expected,)
        for one in several:
            if one is not None and not isinstance(one, (str, int, float, bool, re.Pattern)):
                refuse(subject, f"{option} {path}: {one!r} is no text, number, True, False, None or re.compile(…)")
        if not several:
            refuse(subject, f"{option} {path}: an empty list is equal to nothing")
        if isinstance(path, str):
            found.append((path, several))
        else:
            refuse(subject, f"{option}: {path!r} is no path: write text such as $.issue.state")
    return tuple(found)
