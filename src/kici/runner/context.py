"""`ctx`, as steps meet it: the implementation of `kici.sdk.context.Ctx`."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from kici.engine import templates
from kici.engine.events import Event
from kici.runner import waiting
from kici.runner.artifacts import Artifacts
from kici.runner.cache_files import CacheFiles, CacheUse
from kici.runner.environment import Environment
from kici.runner.hiding import check_can_be_hidden
from kici.runner.results import NeedsView, Results
from kici.runner.shell import Activity, Doing, Options, ShCommand, command
from kici.runner.transfers import Transfers
from kici.sdk.caches import Cache, cache
from kici.sdk.context import AnnotationLevel, Ctx
from kici.sdk.durations import Duration, milliseconds
from kici.sdk.errors import SecretNotFound
from kici.sdk.event_views import EventView, view
from kici.sdk.facts import AgentFacts, Fanout, Git, JobFacts, Matrix, Outcome, Output, RunFacts, WorkflowFacts
from kici.wire.context import JobContext
from kici.wire.runner import Annotated, FromRunner, Mask, Summarized

T = TypeVar("T")
V = TypeVar("V", bound=EventView)

_PIECE_CHARS = 65_536


class Cancelled:
    """A `kici.sdk.context.Cancelled`. Asked from any thread, awaited in the loop."""

    def __init__(self) -> None:
        self.reason = ""
        self.failed = False
        """The job has run out of time: it fails."""
        self.grace_s = 0.0
        """What the step that runs gets to end in."""
        self.deadline = 0.0
        """When the loop's clock ends all that still runs, hooks too."""
        self.group_grace_s = 5.0
        """What a step gets to end in that is cancelled because another one of its group has failed."""
        self._event = asyncio.Event()

    def set(self, reason: str, *, failed: bool, grace_s: float, for_steps_s: float) -> None:
        """Only the first time counts. `grace_s` is for all that follows, `for_steps_s` of it for the step that runs."""
        if self.reason:
            return
        self.reason = reason or "cancelled"
        self.failed = failed
        self.grace_s = for_steps_s
        self.deadline = asyncio.get_running_loop().time() + grace_s
        self._event.set()

    def take(self, other: Cancelled) -> None:
        """Be cancelled as the other is."""
        if not self.reason:
            self.reason, self.failed = other.reason, other.failed
            self.grace_s, self.deadline = other.grace_s, other.deadline
            self._event.set()

    def __bool__(self) -> bool:
        return bool(self.reason)

    def __await__(self) -> Generator[Any, Any, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        await self._event.wait()


class JobState(Struct):
    """What all steps of the job share."""

    root: str
    facts: JobContext
    environment: Environment
    results: Results
    transfers: Transfers
    cancelled: Cancelled
    tell: Callable[[FromRunner], None]
    emitted: int = 0
    """How many events its steps have sent."""


def template_fields(facts: JobContext) -> dict[str, str]:
    return templates.fields(facts.event, workflow=facts.workflow, job=facts.job, matrix=facts.matrix)


class StepContext:
    def __init__(self, state: JobState, activity: Activity, directory: str, shell: str, outcome: Outcome) -> None:
        """Its commands start in `directory`, an absolute path, and are run by `shell` unless they say otherwise."""
        self._state = state
        self.activity = activity
        self.outcome = outcome
        self._directory = directory
        self._shell = shell

    def sh(
        self,
        command_: Any,
        /,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        check: bool = True,
        input: str | bytes | None = None,
        timeout: Any = None,
        quiet: bool = False,
        shell: str | None = None,
        **values: object,
    ) -> ShCommand:
        options = Options(env, cwd, check, input, timeout, quiet, shell or self._shell)
        return command(self.activity, self._directory, command_, options, values)

    # ── log ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def log(self) -> StepLog:
        return StepLog()

    @contextmanager
    def group(self, title: str, /) -> Iterator[None]:
        print(f"::group::{' '.join(title.split())}")  # noqa: T201
        try:
            yield
        finally:
            print("::endgroup::")  # noqa: T201

    def mask(self, value: str, /) -> None:
        if value:
            check_can_be_hidden(value)
            self._state.tell(Mask(value))

    def annotate(
        self, level: AnnotationLevel, message: str, /, *, file: str | None = None, line: int | None = None
    ) -> None:
        if level not in ("notice", "warning", "error"):
            raise ValueError(f"level is {level!r}: it is notice, warning or error")
        place = f"{file}:{line}: " if file and line else f"{file}: " if file else ""
        print(f"[{level}] {place}{message}")  # noqa: T201
        self.activity.tell(
            Annotated(self.activity.index, level, str(message), os.fspath(file) if file else "", line or 0)
        )

    def summary(self, markdown: str, /) -> None:
        for start in range(0, len(markdown), _PIECE_CHARS):
            self.activity.tell(Summarized(self.activity.index, markdown[start : start + _PIECE_CHARS]))

    # ── environment and secrets ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def env(self) -> Mapping[str, str]:
        return MappingProxyType(self._state.environment.variables())

    def set_env(self, name: str, value: str, /) -> None:
        self._state.environment.set(name, value)

    def add_path(self, directory: str | os.PathLike[str], /) -> None:
        self._state.environment.add_path(os.path.join(self._state.root, directory))

    @property
    def secrets(self) -> Secrets:
        return Secrets(self._state.facts.secrets)

    def expose(self, name: str, /) -> None:
        self._state.environment.for_this_step(name, self.secrets[name])

    def set_secret_output(self, name: str, value: str, /) -> Doing[None]:
        if not isinstance(value, str) or not name.isidentifier():
            raise ValueError(f"{name!r} cannot be set: a name has letters, digits and _, and a value is text")

        check_can_be_hidden(value)

        async def set_() -> None:
            self.mask(value)
            await self._state.transfers.secret_output(name, value)

        return Doing(self.activity, set_)

    # ── facts ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def event(self) -> Event:
        return self._state.facts.event

    def event_as(self, of: type[V], /) -> V:
        return view(self._state.facts.event, of)

    @property
    def payload(self) -> Any:
        return self._state.facts.event.payload

    @property
    def inputs(self) -> Mapping[str, str]:
        return MappingProxyType(self._state.facts.event.inputs)

    def inputs_as(self, of: type[T], /) -> T:
        from kici.runner.inputs import typed_inputs  # late: it lowers the class, which few steps need

        return typed_inputs(of, self._state.facts.event.inputs)

    @property
    def git(self) -> Git:
        event = self._state.facts.event
        return Git(event.repo, event.ref, event.branch, event.tag, event.sha, event.base_branch)

    @property
    def run(self) -> RunFacts:
        facts = self._state.facts
        return RunFacts(facts.run_id, facts.run_url, facts.is_local)

    @property
    def workflow(self) -> WorkflowFacts:
        return WorkflowFacts(self._state.facts.workflow)

    @property
    def job(self) -> JobFacts:
        facts = self._state.facts
        return JobFacts(facts.job_id, facts.job, facts.name, facts.attempt)

    @property
    def matrix(self) -> Matrix:
        return Matrix(self._state.facts.matrix)

    @property
    def fanout(self) -> Fanout:
        facts = self._state.facts
        return Fanout(facts.fanout_index, facts.fanout_total)

    @property
    def agent(self) -> AgentFacts:
        known = self._state.facts.agent
        if known is None:
            return AgentFacts("local", (), platform.system().lower(), platform.machine().lower())
        return AgentFacts(known.name, known.labels, known.os, known.arch)

    @property
    def environment(self) -> str:
        return self._state.facts.environment

    @property
    def cancelled(self) -> Cancelled:
        return self._state.cancelled

    # ── what others have returned, files ──────────────────────────────────────────────────────────────────────────────

    @property
    def needs(self) -> NeedsView:
        return self._state.results.needs

    def outputs(self, source: Any, /, *, job: Any = None) -> Any:
        return self._state.results.one(source, job)

    def outputs_all(self, source: Any, /, *, job: Any = None) -> list[Output[Any]]:
        return self._state.results.all(source, job)

    @property
    def artifacts(self) -> Artifacts:
        return Artifacts(self.activity, self._state.transfers, self._state.root)

    def cache(self, key: str, paths: str | Sequence[str], /, *, restore: str | Sequence[str] = ()) -> CacheUse:
        wanted = cache(key, paths=paths, restore=restore)
        kept = [path for path in wanted.paths if self._may_touch(path)]
        wanted = Cache(wanted.key, tuple(kept), wanted.restore)
        files = CacheFiles(self._state.root, self._state.transfers, template_fields(self._state.facts))
        return CacheUse(self.activity, files, wanted)

    def _may_touch(self, path: str) -> bool:
        return ("home" if path.startswith("~/") else "checkout") not in self._state.facts.untouched

    # ── others ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def emit(self, name: str, payload: Any = None, /) -> Doing[str]:
        # The same in every attempt of the job that runs the same code: sent twice, it is one event.
        state = self._state
        key = f"{self.activity.index}.{state.emitted}"
        state.emitted += 1
        data = msgspec.json.decode(msgspec.json.encode(payload))

        async def emit() -> str:
            return await state.transfers.emit(name, data, key)

        return Doing(self.activity, emit)

    def wait_for(self, fn: Callable[[], Any], /, *, every: Duration = "2s", timeout: Duration = "60s") -> Doing[Any]:
        every_s, limit_s = milliseconds(every) / 1000, milliseconds(timeout) / 1000
        return Doing(self.activity, lambda: waiting.wait_for(fn, every_s, limit_s))


if TYPE_CHECKING:

    def _is_one(ctx: StepContext) -> Ctx:
        return ctx


class StepLog:
    """A `kici.sdk.context.Log`. Debug lines only if the job's environment has `KICI_LOG_LEVEL=debug`."""

    def debug(self, message: str, /, **fields: object) -> None:
        if os.environ.get("KICI_LOG_LEVEL", "").lower() == "debug":
            self._line("debug", message, fields)

    def info(self, message: str, /, **fields: object) -> None:
        self._line("info", message, fields)

    def warning(self, message: str, /, **fields: object) -> None:
        self._line("warning", message, fields)

    def error(self, message: str, /, **fields: object) -> None:
        self._line("error", message, fields)

    def _line(self, level: str, message: str, fields: Mapping[str, object]) -> None:
        shown = "".join(f" {name}={value}" for name, value in fields.items())
        print(f"[{level}] {message}{shown}", file=sys.stdout)  # noqa: T201


class Secrets(Mapping[str, str]):
    """The job's secrets; no value of them is in its repr."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> str:
        try:
            return self._values[name]
        except KeyError:
            names = ", ".join(sorted(self._values)) or "none"
            raise SecretNotFound(f"the job has no secret {name!r}; it has: {names}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(sorted(self._values))})"
