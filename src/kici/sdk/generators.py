"""Jobs that only running code can tell: `@jobs` on a function that makes them."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from msgspec import Struct

from kici.sdk.durations import Duration
from kici.sdk.jobs import Condition, Ending, Job, Need, NeedLike, checked_needs, need_of
from kici.sdk.labels import Labels, RunsOn, checked_runs_on
from kici.sdk.problems import Location, call_site, location_of, refuse
from kici.sdk.values import checked_duration, checked_name

if TYPE_CHECKING:
    from kici.sdk.context import Ctx

DEFAULT_TIMEOUT_MS = 60_000
MAX_JOBS = 100

JobMaker: TypeAlias = "Callable[[Ctx], Iterable[Job[Any]] | AsyncIterable[Job[Any]] | Awaitable[Iterable[Job[Any]]]]"
"""`def` or `async def`, with `return [job, …]` or `yield job`."""


class Generator(Struct, frozen=True, eq=False, kw_only=True):
    """A function that makes jobs. It stands in a workflow's `jobs` and in `needs`, for all that it makes."""

    name: str
    location: Location
    fn: JobMaker
    runs_on: Labels
    needs: tuple[Need, ...] = ()
    timeout_ms: int = DEFAULT_TIMEOUT_MS

    def when(self, condition: Condition | Ending | Collection[Ending], /) -> Need:
        """For `needs`: also start after other endings of its jobs than success."""
        return need_of(self, condition)


class GeneratorDecorator(Protocol):
    def __call__(self, fn: JobMaker, /) -> Generator: ...


def jobs(
    name: str, /, *, needs: Sequence[NeedLike] = (), runs_on: RunsOn = "linux", timeout: Duration = "60s"
) -> GeneratorDecorator:
    """Jobs made while the run goes: `@jobs("shards", needs=[plan])` on a function of ctx that yields jobs.

    It runs in a job of its own, `init: NAME`, on an agent with the labels `runs_on`, after what it needs, and can read
    the outputs of that. At most 100 jobs. The agent that runs one of them calls the function again to get its steps:
    with the same ctx it must make the same jobs.
    """
    subject = f"jobs {name!r}"

    def of(fn: JobMaker, /) -> Generator:
        if not callable(fn):
            refuse(subject, f"{fn!r} is no function: put @jobs(…) on a function of ctx that yields jobs")
        return Generator(
            name=checked_name(subject, name),
            location=location_of(fn) if callable(fn) else call_site(),
            fn=fn,
            runs_on=checked_runs_on(subject, runs_on),
            needs=checked_needs(subject, needs),
            timeout_ms=checked_duration(subject, "timeout", timeout, None) or DEFAULT_TIMEOUT_MS,
        )

    if not isinstance(name, str):
        refuse("jobs", 'it has no name: write @jobs("shards")')
    return of
