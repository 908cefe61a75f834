"""What runs around steps, and at the end of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from kici.sdk.durations import Duration
from kici.sdk.problems import Location, call_site, location_of, refuse
from kici.sdk.values import checked_duration

if TYPE_CHECKING:
    from kici.sdk.context import Ctx

DEFAULT_TIMEOUT_MS = 5 * 60_000
AROUND_STEPS = ("before_step", "after_step")
"""Of a job. They are told in the log of the step; when they fail, that is all that happens."""
AT_THE_END = ("on_success", "on_failure", "on_cancel", "cleanup")
"""Of a job and of a workflow, in the order in which they run."""
OF_A_STEP = ("on_cancel", "cleanup")


class Hook(Struct, frozen=True, eq=False):
    """A function or a command, with a limit. Make one by `hook`, or write the function or command itself."""

    fn: Callable[[Ctx], Any] | None
    command: str | None
    timeout_ms: int
    location: Location


HookLike: TypeAlias = "Hook | str | Callable[[Ctx], Any]"


def hook(what: str | Callable[[Ctx], Any], /, *, timeout: Duration = "5m") -> Hook:
    """A hook that may take another time than five minutes: `cleanup=hook(remove_cluster, timeout="15m")`."""
    return _of("hook(…)", what, checked_duration("hook(…)", "timeout", timeout, DEFAULT_TIMEOUT_MS))


def checked_hooks(subject: str, options: Mapping[str, object], names: Iterable[str]) -> dict[str, Hook]:
    """Those of the names that the options give."""
    return {name: _of(f"{subject}: {name}", options[name], None) for name in names if options.get(name) is not None}


def _of(subject: str, value: object, timeout_ms: int | None) -> Hook:
    limit = timeout_ms or DEFAULT_TIMEOUT_MS
    if isinstance(value, Hook):
        return value
    if isinstance(value, str) and value.strip():
        return Hook(None, value, limit, call_site())
    if callable(value):
        return Hook(value, None, limit, location_of(value))
    refuse(subject, f"{value!r} is no hook: write a function of ctx, or a command")
    return Hook(None, ":", limit, call_site())
