"""`ctx` of a step that is tested: what it reads is what the test says, what it does is kept."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from kici.engine.events import Event
from kici.errors import KiciError
from kici.runner.environment import check_variable
from kici.runner.hiding import check_can_be_hidden
from kici.runner.inputs import typed_inputs
from kici.runner.shell import argv_of
from kici.sdk.context import Ctx
from kici.sdk.durations import milliseconds
from kici.sdk.errors import CommandInvalid, DefinitionError, NoOutput, SecretNotFound, WaitTimeout
from kici.sdk.event_views import EventView, view
from kici.sdk.facts import AgentFacts, Fanout, Git, JobFacts, Matrix, Outcome, RunFacts, WorkflowFacts
from kici.testing.results import Given
from kici.testing.shell import Call, FakeCommand, FakePending, FakeShell, command_text, no_loop_here

T = TypeVar("T")
V = TypeVar("V", bound=EventView)


class LogLine(Struct, frozen=True):
    level: str
    message: str
    fields: dict[str, object] = {}


class Annotation(Struct, frozen=True):
    level: str
    message: str
    file: str | None = None
    line: int | None = None


class Told(Struct):
    """What a step did besides its commands."""

    log: list[LogLine] = []
    annotations: list[Annotation] = []
    summary: str = ""
    masked: list[str] = []
    secret_outputs: dict[str, str] = {}
    emitted: list[tuple[str, Any]] = []
    uploaded: dict[str, tuple[str, ...]] = {}
    """Artifact's name → paths, as the step wrote them."""
    caches: list[str] = []
    """Keys that were asked for."""
    env: dict[str, str] = {}
    """The environment as the step leaves it, without what it has exposed."""
    exposed: list[str] = []
    """Names of secrets."""


class Facts(Struct, frozen=True):
    """What a step can read."""

    event: Event
    root: Path
    directory: Path
    """Where its commands start."""
    shell: str = "bash"
    job: str = "job"
    workflow: str = "workflow"
    attempt: int = 1
    matrix: Mapping[str, str] = {}
    fanout: Fanout = Fanout(0, 1)
    environment: str = ""
    secrets: Mapping[str, str] = {}
    artifacts: Mapping[str, Mapping[str, str | bytes]] = {}
    cached: frozenset[str] = frozenset()
    agent: AgentFacts = AgentFacts("local", (), "linux", "x64")
    outcome: Outcome = Outcome("running")
    local: bool = False
    run_id: str = "run-1"
    run_url: str = ""
    cancelled: str = ""


class FakeCtx:
    """A `kici.Ctx`."""

    def __init__(
        self, facts: Facts, shell: FakeShell, given: Given, env: Mapping[str, str], extra: Mapping[str, Any]
    ) -> None:
        self._facts = facts
        self._shell = shell
        self._given = given
        self._extra = extra
        self._exposed: dict[str, str] = {}
        self._env = dict(env)
        self.told = Told(env=self._env)
        self.cancelled = FakeCancelled(facts.cancelled)

    def __getattr__(self, name: str) -> Any:
        """Only for what is not here: the test may give it by `extra`."""
        extra = self.__dict__.get("_extra", {})
        if name in extra:
            return extra[name]
        raise AttributeError(f"ctx has no {name!r} in tests: give it by run_step(…, extra={{{name!r}: …}})")

    # ── commands ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def sh(
        self,
        command: Any,
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
    ) -> FakeCommand:
        argv = argv_of(command, shell or self._facts.shell, values)
        listed = not isinstance(command, str) and not hasattr(command, "interpolations")
        if timeout is not None:
            try:
                milliseconds(timeout)
            except ValueError as error:
                raise CommandInvalid(f"timeout: {error}") from error
        extra = {name: str(value) for name, value in (env or {}).items()}

        def prepare() -> Call:
            return Call(
                command_text(argv, listed=listed),
                argv,
                self._env | self._exposed | extra,
                os.path.join(self._facts.directory, cwd or ""),
                input.encode() if isinstance(input, str) else input,
            )

        return FakeCommand(self._shell, prepare, check=check)

    # ── log ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def log(self) -> FakeLog:
        return FakeLog(self.told.log)

    @contextmanager
    def group(self, title: str, /) -> Iterator[None]:
        self.told.log.append(LogLine("group", title))
        yield

    def mask(self, value: str, /) -> None:
        if value:
            check_can_be_hidden(value)
            self.told.masked.append(value)

    def annotate(self, level: str, message: str, /, *, file: str | None = None, line: int | None = None) -> None:
        self.told.annotations.append(Annotation(level, message, file, line))

    def summary(self, markdown: str, /) -> None:
        self.told.summary += markdown

    # ── environment and secrets ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def env(self) -> Mapping[str, str]:
        return MappingProxyType(self._env | self._exposed)

    def set_env(self, name: str, value: str, /) -> None:
        check_variable(name, value, self._facts.secrets)
        self._env[name] = value

    def add_path(self, directory: str | os.PathLike[str], /) -> None:
        text = os.path.join(self._facts.root, directory)
        self._env["PATH"] = os.pathsep.join((text, *filter(None, (self._env.get("PATH"),))))

    @property
    def secrets(self) -> FakeSecrets:
        return FakeSecrets(self._facts.secrets)

    def expose(self, name: str, /) -> None:
        self._exposed[name] = self.secrets[name]
        self.told.exposed.append(name)

    def set_secret_output(self, name: str, value: str, /) -> FakePending[None]:
        check_can_be_hidden(value)
        return FakePending(lambda: self.told.secret_outputs.__setitem__(name, value))

    # ── facts ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def event(self) -> Event:
        return self._facts.event

    def event_as(self, of: type[V], /) -> V:
        return view(self._facts.event, of)

    @property
    def payload(self) -> Any:
        return self._facts.event.payload

    @property
    def inputs(self) -> Mapping[str, str]:
        return MappingProxyType(self._facts.event.inputs)

    def inputs_as(self, of: type[T], /) -> T:
        return typed_inputs(of, self._facts.event.inputs)

    @property
    def git(self) -> Git:
        event = self._facts.event
        return Git(event.repo, event.ref, event.branch, event.tag, event.sha, event.base_branch)

    @property
    def run(self) -> RunFacts:
        return RunFacts(self._facts.run_id, self._facts.run_url, self._facts.local)

    @property
    def workflow(self) -> WorkflowFacts:
        return WorkflowFacts(self._facts.workflow)

    @property
    def job(self) -> JobFacts:
        facts = self._facts
        suffix = f" ({', '.join(facts.matrix.values())})" if facts.matrix else ""
        return JobFacts("job-1", facts.job, facts.job + suffix, facts.attempt)

    @property
    def matrix(self) -> Matrix:
        return Matrix(self._facts.matrix)

    @property
    def fanout(self) -> Fanout:
        return self._facts.fanout

    @property
    def agent(self) -> AgentFacts:
        return self._facts.agent

    @property
    def outcome(self) -> Outcome:
        return self._facts.outcome

    @property
    def environment(self) -> str:
        return self._facts.environment

    # ── what others have returned ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def needs(self) -> Any:
        return self._given.needs

    def outputs(self, source: Any, /, *, job: Any = None) -> Any:
        return self._given.one(source, job)

    def outputs_all(self, source: Any, /, *, job: Any = None) -> list[Any]:
        return self._given.all(source, job)

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def artifacts(self) -> FakeArtifacts:
        return FakeArtifacts(self._facts, self.told)

    def cache(self, key: str, paths: str | Sequence[str], /, *, restore: str | Sequence[str] = ()) -> FakeCache:
        self.told.caches.append(key)
        prefixes = (restore,) if isinstance(restore, str) else tuple(restore)
        near = next((one for prefix in prefixes for one in sorted(self._facts.cached) if one.startswith(prefix)), "")
        return FakeCache(key if key in self._facts.cached else near, hit=key in self._facts.cached)

    # ── others ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def emit(self, name: str, payload: Any = None, /) -> FakePending[str]:
        def emit() -> str:
            self.told.emitted.append((name, payload))
            return f"event-{len(self.told.emitted)}"

        return FakePending(emit)

    def wait_for(self, fn: Callable[[], Any], /, *, every: Any = "2s", timeout: Any = "60s") -> FakeWait:
        """Nothing is waited for: the function is asked as often as it would be if it took no time."""
        return FakeWait(fn, milliseconds(timeout) // max(1, milliseconds(every)) + 1)


if TYPE_CHECKING:

    def _is_one(ctx: FakeCtx) -> Ctx:
        return ctx


class FakeLog:
    def __init__(self, lines: list[LogLine]) -> None:
        self._lines = lines

    def debug(self, message: str, /, **fields: object) -> None:
        self._lines.append(LogLine("debug", message, fields))

    def info(self, message: str, /, **fields: object) -> None:
        self._lines.append(LogLine("info", message, fields))

    def warning(self, message: str, /, **fields: object) -> None:
        self._lines.append(LogLine("warning", message, fields))

    def error(self, message: str, /, **fields: object) -> None:
        self._lines.append(LogLine("error", message, fields))


class FakeSecrets(Mapping[str, str]):
    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> str:
        if name not in self._values:
            names = ", ".join(sorted(self._values)) or "none"
            raise SecretNotFound(f"the test gives no secret {name!r}; it gives: {names}")
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(sorted(self._values))})"


class FakeArtifacts:
    def __init__(self, facts: Facts, told: Told) -> None:
        self._facts = facts
        self._told = told

    def upload(self, name: str, paths: Any, /) -> FakePending[None]:
        """The files need not be there: a fake shell has made none."""
        several = (paths,) if isinstance(paths, (str, os.PathLike)) else tuple(paths)

        def upload() -> None:
            if name in self._told.uploaded:
                raise KiciError(f"there is an artifact {name!r} already: give it another name")
            self._told.uploaded[name] = tuple(os.fspath(path) for path in several)

        return FakePending(upload)

    def download(self, name: str, /, into: str | os.PathLike[str] = ".") -> FakePending[list[str]]:
        def download() -> list[str]:
            if name not in self._facts.artifacts:
                there = ", ".join(sorted(self._facts.artifacts)) or "none"
                raise NoOutput(f"the test gives no artifact {name!r}; it gives: {there}")
            made = []
            for path, content in sorted(self._facts.artifacts[name].items()):
                if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                    raise DefinitionError(f"artifact {name!r}: {path!r} leaves the directory")
                target = self._facts.root / into / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.encode() if isinstance(content, str) else content)
                made.append(os.path.relpath(target, self._facts.root))
            return made

        return FakePending(download)


class FakeCache:
    def __init__(self, matched: str, *, hit: bool) -> None:
        self.hit = hit
        self.matched_key = matched

    async def __aenter__(self) -> FakeCache:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        return None

    def __enter__(self) -> FakeCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        return None


class FakeCancelled:
    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __bool__(self) -> bool:
        return bool(self.reason)

    def __await__(self) -> Generator[Any, Any, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        if not self.reason:
            await asyncio.Event().wait()


class FakeWait:
    def __init__(self, fn: Callable[[], Any], times: int) -> None:
        self._fn = fn
        self._times = times

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._poll().__await__()

    def run(self) -> Any:
        no_loop_here()
        return asyncio.run(self._poll())

    async def _poll(self) -> Any:
        for _ in range(self._times):
            found = self._fn()
            if inspect.isawaitable(found):
                found = await _awaited(found)
            if found is not None and found is not False:
                return found
            await asyncio.sleep(0)
        raise WaitTimeout(f"asked {self._times} times, and it was never so")


async def _awaited(found: Awaitable[Any]) -> Any:
    return await found
