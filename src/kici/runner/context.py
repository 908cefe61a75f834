"""`ctx`, as steps meet it: the implementation of `kici.sdk.context.Ctx`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec import Struct

from kici.engine.events import Event
from kici.runner.artifacts import Artifacts, Transfers
from kici.runner.environment import Environment
from kici.runner.inputs import typed_inputs
from kici.runner.results import NeedsView, Results
from kici.runner.shell import Activity, Options, ShCommand, command
from kici.sdk.errors import SecretNotFound
from kici.sdk.event_views import EventView, view
from kici.sdk.facts import Git, JobFacts, Matrix, Output, RunFacts, WorkflowFacts
from kici.wire.context import JobContext

T = TypeVar("T")
V = TypeVar("V", bound=EventView)

_MAX_MASK_CHARS = 65_536


class Cancelled:
    """A `kici.sdk.context.Cancelled`. Asked from any thread, awaited in the loop."""

    def __init__(self) -> None:
        self.reason = ""
        self._event = asyncio.Event()

    def set(self, reason: str) -> None:
        self.reason = reason or "cancelled"
        self._event.set()

    def __bool__(self) -> bool:
        return bool(self.reason)

    def __await__(self) -> Generator[Any, Any, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        await self._event.wait()


class JobState(Struct, frozen=True):
    """What all steps of the job share."""

    root: str
    facts: JobContext
    environment: Environment
    results: Results
    transfers: Transfers
    cancelled: Cancelled
    mask: Callable[[str], None]


class StepContext:
    def __init__(self, state: JobState, activity: Activity, directory: str, shell: str) -> None:
        """Its commands start in `directory`, an absolute path, and are run by `shell` unless they say otherwise."""
        self._state = state
        self._activity = activity
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
        return command(self._activity, self._directory, command_, options, values)

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
        if len(value) > _MAX_MASK_CHARS:
            raise ValueError(f"a value of {len(value):,} characters cannot be hidden; the limit is {_MAX_MASK_CHARS:,}")
        self._state.mask(value)

    # ── environment and secrets ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def env(self) -> Mapping[str, str]:
        return MappingProxyType(os.environ)

    def set_env(self, name: str, value: str, /) -> None:
        self._state.environment.set(name, value)

    def add_path(self, directory: str | os.PathLike[str], /) -> None:
        self._state.environment.add_path(os.path.join(self._state.root, directory))

    @property
    def secrets(self) -> Secrets:
        return Secrets(self._state.facts.secrets)

    def expose(self, name: str, /) -> None:
        self._state.environment.expose(name, self.secrets[name])

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
        return Artifacts(self._activity, self._state.transfers, self._state.root)


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
