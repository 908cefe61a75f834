"""Calls the functions of a workflow that decide something: options of jobs, and generators."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterable, Callable, Iterable
from contextvars import copy_context
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from kici.engine.evaluation import FUNCTION_MS, MAX_JOBS, Generated, Values
from kici.engine.lockfile import LockJob, SourceLocation
from kici.errors import KiciError
from kici.lowering.jobs import Locate, lowered_job
from kici.sdk.errors import DefinitionError
from kici.sdk.generators import Generator
from kici.sdk.jobs import Job, checked_matrix
from kici.sdk.problems import Location
from kici.sdk.values import checked_env, checked_scalar
from kici.sdk.workflows import Workflow

if TYPE_CHECKING:
    from kici.sdk.context import Ctx

_MAX_VALUE_CHARS = 4_000


class FunctionFailed(KiciError):
    """It took too long, or gave what cannot be. What it raises itself is raised as it is."""

    code = "function_failed"
    status = 422


async def values_of(job: Job[Any], ctx: Ctx) -> Values:
    """Ask for the dynamic options of a job, one after the other. Raises `FunctionFailed`, and what they raise."""
    given: dict[str, Any] = {}
    for name, function in sorted(job.dynamic.items()):
        subject = f"job {job.name!r}: {name}"
        value = await _limited(function, ctx, subject, FUNCTION_MS)
        try:
            given[name] = _CHECKS[name](subject, value)
        except DefinitionError as error:
            raise FunctionFailed(f"what its function returned: {error}") from error
        print(f"{subject} is {_shown(given[name])}")  # noqa: T201 - into the step's log
    return Values(**given)


async def jobs_of(generator: Generator, ctx: Ctx) -> list[Job[Any]]:
    """Let a generator make its jobs. Raises `FunctionFailed`, and what it raises."""
    subject = f"generator {generator.name!r}"
    found = await _limited(lambda given: generator.fn(given), ctx, subject, generator.timeout_ms, of=generator.fn)
    for one in found:
        if not isinstance(one, Job):
            raise FunctionFailed(f"{subject} made {one!r}, which is no job: yield jobs, or return a list of them")
    if len(found) > MAX_JOBS:
        raise FunctionFailed(
            f"{subject} made more than {MAX_JOBS} jobs, which is the limit: make fewer, or give them a matrix"
        )
    return list(found)


async def generated(workflow: Workflow, generator: Generator, ctx: Ctx, locate: Locate) -> tuple[Generated, ...]:
    """Its jobs as the lock file would have them, each with what its dynamic options stand for."""
    made = []
    for job in await jobs_of(generator, ctx):
        lowered = lowered_job(job, workflow, locate)
        made.append(Generated(lowered, await values_of(job, ctx)))
        print(f"made job {job.name!r}")  # noqa: T201 - into the step's log
    return tuple(made)


def locator(kici_dir: str) -> Locate:
    """Where something stands, as the lock file names it."""
    below = os.path.realpath(kici_dir) + os.sep

    def locate(location: Location) -> SourceLocation | None:
        file = os.path.realpath(location.file)
        if not file.startswith(below):
            return None
        return SourceLocation(f".kici/{file.removeprefix(below).replace(os.sep, '/')}", location.line)

    return locate


def shape(job: LockJob) -> list[tuple[str, str | None, str]]:
    """What two versions of a generated job must have in common, so that one runs the other's steps."""
    return [(step.name, step.command, step.kind.value) for step in job.steps]


async def _limited(
    function: Callable[[Any], Any], ctx: Ctx, subject: str, limit_ms: int, *, of: Callable[..., Any] | None = None
) -> Any:
    """What the function gives. A thread of its own cannot be stopped at the limit, but it is not waited for."""
    work = asyncio.ensure_future(_called(function, ctx, subject, of=of))
    try:
        await asyncio.wait((work,), timeout=limit_ms / 1000)
        if not work.done():
            raise FunctionFailed(f"{subject}: its function took longer than {limit_ms / 1000:g} s")
        return work.result()
    finally:
        if not work.done():
            work.cancel()


async def _called(function: Callable[[Any], Any], ctx: Ctx, subject: str, *, of: Callable[..., Any] | None) -> Any:
    """`of` is the generator's function: then all that it makes is read."""
    inner = of or function
    try:
        if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
            found = function(ctx)
        else:
            found = await asyncio.get_running_loop().run_in_executor(
                None, copy_context().run, _in_thread, function, ctx, of is not None
            )
        if inspect.isawaitable(found):
            found = await found
        return found if of is None else await _read(found, subject)
    except (SystemExit, _Exited) as error:
        raise FunctionFailed(f"{subject}: its function called sys.exit") from error


class _Exited(Exception):
    """`SystemExit` of a thread, which would end the loop."""


def _in_thread(function: Callable[[Any], Any], ctx: Ctx, reads: bool) -> Any:
    try:
        found = function(ctx)
        return list(islice(found, MAX_JOBS + 1)) if reads and inspect.isgenerator(found) else found
    except SystemExit as error:
        raise _Exited from error


async def _read(found: object, subject: str) -> list[Any]:
    """One more than may be, at most."""
    if isinstance(found, AsyncIterable):
        read: list[Any] = []
        async for one in found:
            read.append(one)
            if len(read) > MAX_JOBS:
                break
        return read
    if not isinstance(found, Iterable) or isinstance(found, (str, bytes)):
        raise FunctionFailed(f"{subject} returned {found!r}: yield jobs, or return a list of them")
    return list(islice(found, MAX_JOBS + 1))


def _text(subject: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > _MAX_VALUE_CHARS or "\0" in value:
        raise DefinitionError(f"{subject}: {value!r} is no text of 1 to {_MAX_VALUE_CHARS} characters")
    return value


def _matrix(subject: str, value: object) -> dict[str, tuple[str, ...]]:
    found = checked_matrix(subject, value)
    if found is None:
        raise DefinitionError(f'{subject}: {value!r} is no matrix: return {{"name": ["value", …]}} or a list')
    return found


def _env(subject: str, value: object) -> dict[str, str]:
    # What stands between braces is text here: the check of templates is for what stands in the module.
    if not isinstance(value, dict):
        raise DefinitionError(f"{subject}: {value!r} is no dictionary of names and values")
    checked_env(subject, dict.fromkeys(cast("dict[str, Any]", value), ""))
    return {str(name): _scalar(f"{subject} {name}", one) for name, one in value.items()}


def _scalar(subject: str, value: object) -> str:
    return checked_scalar(subject, "value", value)


_CHECKS: dict[str, Callable[[str, object], Any]] = {
    "concurrency": _text,
    "env": _env,
    "environment": _text,
    "matrix": _matrix,
}


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name}: {', '.join(one) if isinstance(one, tuple) else one}" for name, one in value.items())
    return str(value)
