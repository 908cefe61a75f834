"""Runs one step as a test wants it: its code is the real one, its shell and what it reads are the test's."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from msgspec import Struct

from kici.engine.events import Event
from kici.errors import KiciError
from kici.sdk.context import Ctx
from kici.sdk.facts import Fanout, Outcome
from kici.sdk.jobs import Job
from kici.sdk.outputs import return_type, to_data
from kici.sdk.steps import Step
from kici.testing.context import Annotation, Facts, FakeCtx, LogLine, Told
from kici.testing.events import push_event
from kici.testing.results import Given, Key, NeedGiven
from kici.testing.shell import Call, FakeShell

if TYPE_CHECKING:
    from typing import TypedDict, Unpack

    class RunOptions(TypedDict, total=False):
        sh: FakeShell
        """Without it no command is expected."""
        event: Event
        """A push to main if left out."""
        secrets: Mapping[str, str]
        inputs: Mapping[str, str]
        """In the place of the event's."""
        matrix: Mapping[str, str]
        env: Mapping[str, str]
        outputs: Mapping[Key, Any]
        """What `ctx.outputs(…)` gives: step or job → its value."""
        outputs_all: Mapping[Key, Sequence[Any]]
        """What `ctx.outputs_all(…)` gives: values, or `kici.Output`s."""
        needs: Mapping[Job[Any] | str, NeedGiven]
        artifacts: Mapping[str, Mapping[str, str | bytes]]
        """What can be downloaded: name → path → content."""
        cached: Iterable[str]
        """Keys that `ctx.cache` finds."""
        root: str | os.PathLike[str]
        """The checkout: the step runs there. The current directory if left out."""
        job: str
        workflow: str
        attempt: int
        environment: str
        fanout: Fanout
        outcome: Outcome
        cancelled: str
        """The reason: the job is being cancelled."""
        extra: Mapping[str, Any]
        """Members of `ctx` that tests do not have."""


T = TypeVar("T")


class StepRun(Struct, Generic[T], frozen=True):
    """How one run of a step went. What it raised, `run_step` raises."""

    value: T
    """What it returned, validated as on an agent."""
    calls: list[Call]
    told: Told

    @property
    def commands(self) -> list[str]:
        """What the shell got, in order."""
        return [call.command for call in self.calls]

    @property
    def log(self) -> list[LogLine]:
        return self.told.log

    @property
    def annotations(self) -> list[Annotation]:
        return self.told.annotations

    @property
    def summary(self) -> str:
        return self.told.summary

    @property
    def env(self) -> dict[str, str]:
        """As later steps of the job get it."""
        return self.told.env


@overload
def run_step(step: Step[T], /, **options: Unpack[RunOptions]) -> StepRun[T]: ...
@overload
def run_step(step: Job[T], /, **options: Unpack[RunOptions]) -> StepRun[T]: ...
@overload
def run_step(step: Callable[[Ctx], Coroutine[Any, Any, T]], /, **options: Unpack[RunOptions]) -> StepRun[T]: ...
@overload
def run_step(step: Callable[[Ctx], T], /, **options: Unpack[RunOptions]) -> StepRun[T]: ...
def run_step(step: Any, /, **options: Any) -> StepRun[Any]:
    """Run a step, a job that is one function, or a function of `ctx` such as a hook or a rule. Once.

    There is no retry and no time limit. Raises what the step raises, `OutputInvalid` for a value that does not follow
    its annotation, and `UnexpectedCommand` for a command that `sh` does not expect, also when the step has caught it.
    """
    function, command, directory, shell_name, name = _parts(step)
    event: Event = options.get("event") or push_event()
    if "inputs" in options:
        from msgspec.structs import replace

        event = replace(event, inputs=dict(options["inputs"]))
    root = Path(options.get("root", ".")).resolve()
    facts = Facts(
        event=event,
        root=root,
        directory=root / directory,
        shell=shell_name,
        job=options.get("job", name),
        cached=frozenset(options.get("cached", ())),
        **{key: options[key] for key in _PASSED if key in options},
    )
    shell: FakeShell = options["sh"] if "sh" in options else FakeShell()
    given = Given(options.get("outputs", {}), options.get("outputs_all", {}), options.get("needs", {}))
    inherited = {key: os.environ[key] for key in ("HOME", "PATH") if key in os.environ}
    env = inherited | {"CI": "true"} | dict(options.get("env", {}))
    ctx = FakeCtx(facts, shell, given, env, options.get("extra", {}))
    first = len(shell.calls)
    with contextlib.chdir(root) if "root" in options else contextlib.nullcontext():
        value = _in_a_loop(lambda: _call(function, command, ctx))
    if shell.unexpected:
        raise shell.unexpected
    if function is not None:
        annotation = return_type(function)
        if annotation not in (None, type(None)) and not (annotation is Any and value is None):
            to_data(value, annotation)
        elif annotation is not Any:
            value = None
    return StepRun(value, shell.calls[first:], ctx.told)


_PASSED = ("workflow", "attempt", "matrix", "fanout", "environment", "secrets", "artifacts", "outcome", "cancelled")


def _parts(step: Any) -> tuple[Callable[[Any], Any] | None, str | None, str, str, str]:
    """Function or command, directory, shell, name."""
    if isinstance(step, Job):
        if not step.is_function:
            names = ", ".join(repr(one.name) for one in step.steps)
            raise KiciError(f"job {step.name!r} is made of steps: run one of them ({names})")
        step = step.steps[0]
    if isinstance(step, Step):
        return step.fn, step.command, step.working_directory or ".", step.shell, step.name
    if callable(step):
        return step, None, ".", "bash", getattr(step, "__name__", "function")
    raise TypeError(f"{step!r} is neither a step nor a job nor a function")


async def _call(function: Callable[[Any], Any] | None, command: str | None, ctx: FakeCtx) -> Any:
    if function is None:
        await ctx.sh(command)
        return None
    if inspect.iscoroutinefunction(function):
        return await function(ctx)
    value = await asyncio.to_thread(function, ctx)
    return await value if inspect.isawaitable(value) else value


def _in_a_loop(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """In this thread, or beside a loop that runs in it: a test may be `async def`."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(asyncio.run(make()))
        except BaseException as error:  # noqa: BLE001 - raised below, where the test waits
            failed.append(error)

    thread = threading.Thread(target=run, name="kici-testing")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]
