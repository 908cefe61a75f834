"""`ctx`: what a step can do. Authors see these types; the runner implements them.

What takes time is a `Pending[T]`: `await` it in an `async def`, or call its `.run()` in a `def` step, which runs in a
thread of its own. Nothing starts before that.

For the implementation: every member below works the same on `kici run local` and on an agent. Errors are those of
`kici.sdk.errors`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar, overload

from msgspec import Struct

from kici.sdk.event_views import EventView
from kici.sdk.facts import (
    AgentFacts,
    Event,
    Fanout,
    Git,
    JobFacts,
    Matrix,
    Needs,
    Outcome,
    Output,
    RunFacts,
    WorkflowFacts,
)

if TYPE_CHECKING:
    from os import PathLike

    from kici.sdk.durations import Duration
    from kici.sdk.generators import Generator as Jobs
    from kici.sdk.jobs import Job
    from kici.sdk.steps import Shell, Step

T = TypeVar("T")
V = TypeVar("V", bound=EventView)
AnnotationLevel: TypeAlias = Literal["notice", "warning", "error"]
T_co = TypeVar("T_co", covariant=True)

SH_OPTIONS = frozenset({"env", "cwd", "check", "input", "timeout", "quiet", "shell"})
"""Names that cannot be placeholders of `ctx.sh`."""

MAX_CAPTURE_BYTES = 16 * 1024 * 1024
"""`text`, `lines` and `json` of more than this raise `CommandFailed`: write it to a file instead."""


class Pending(Protocol[T_co]):
    """Something to wait for."""

    def __await__(self) -> Generator[Any, Any, T_co]: ...

    def run(self) -> T_co:
        """Do it and block until it is done. In an `async def` step this raises `RuntimeError`: `await` it there."""


class Result(Struct, frozen=True):
    """How a command ended."""

    argv: tuple[str, ...]
    exit_code: int
    """Not 0 only with `check=False`. Killed by signal n: -n."""
    duration_s: float

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


class Command(Pending[Result], Protocol):
    """A command that has not started. Awaited, it raises `CommandFailed` unless it exits with 0 or `check=False`.

    Both streams go to the step's log while it runs, unless `quiet`; the last lines are kept for `CommandFailed.tail`.
    It runs in a process group of its own, which is killed as a tree at the timeout, at the step's end and on cancel.
    """

    def text(self) -> Pending[str]:
        """Standard output as UTF-8 (bad bytes replaced), without the newlines at the end."""

    def lines(self) -> Pending[list[str]]:
        """`text`, split; an empty output has no lines."""

    @overload
    def json(self) -> Pending[Any]: ...
    @overload
    def json(self, kind: type[T], /) -> Pending[T]:
        """Standard output decoded, and validated if a type is given (`OutputInvalid`)."""

    def ok(self) -> Pending[bool]:
        """Whether it exits with 0; never raises because it does not."""


class TemplateString(Protocol):
    """A t-string (Python ≥ 3.14): its interpolations are quoted."""

    @property
    def strings(self) -> tuple[str, ...]: ...
    @property
    def interpolations(self) -> tuple[Any, ...]: ...


class Log(Protocol):
    """Lines of the step's log with a level. Fields are written after the message as `key=value`."""

    def debug(self, message: str, /, **fields: object) -> None: ...
    def info(self, message: str, /, **fields: object) -> None: ...
    def warning(self, message: str, /, **fields: object) -> None: ...
    def error(self, message: str, /, **fields: object) -> None: ...


class Artifacts(Protocol):
    """Files that outlive the job: other jobs of the run and people can fetch them."""

    def upload(self, name: str, paths: str | PathLike[str] | Sequence[str | PathLike[str]], /) -> Pending[None]:
        """Store files and directories under a name that is new in this run.

        Paths and globs are relative to the checkout and must stay inside it; a path that does not exist, or a glob that
        finds nothing, is an error. Modes and relative paths are kept.
        """

    def download(self, name: str, /, into: str | PathLike[str] = ".") -> Pending[list[str]]:
        """Unpack what a job of this run has uploaded; returns the files' paths from the checkout, sorted.

        Nothing leaves `into`.
        """


class CacheUse(Protocol):
    """`async with ctx.cache(…) as found:`, or `with` in a `def` step."""

    @property
    def hit(self) -> bool:
        """An entry with this very key was restored."""

    @property
    def matched_key(self) -> str:
        """Key of the entry that was restored; empty if there was none."""

    async def __aenter__(self) -> CacheUse: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def __enter__(self) -> CacheUse: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Cancelled(Protocol):
    """`if ctx.cancelled:` tells whether the job is being cancelled; `await ctx.cancelled` waits until it is."""

    @property
    def reason(self) -> str:
        """Empty while nobody has cancelled it."""

    def __bool__(self) -> bool: ...
    def __await__(self) -> Generator[Any, Any, None]: ...


class Ctx(Protocol):
    """What every step gets. One per step; its parts show the state at the time they are asked."""

    # ── commands ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def sh(
        self,
        command: str | TemplateString | Sequence[str | PathLike[str]],
        /,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        check: bool = True,
        input: str | bytes | None = None,
        timeout: Duration | None = None,
        quiet: bool = False,
        shell: Shell | None = None,
        **values: object,
    ) -> Command:
        """Run a command in the checkout: a template (by `bash -euo pipefail -c`), or a list as argv without a shell.

        `{name}` is a placeholder only if `name` is among the values, which are shell-quoted; a list as value becomes
        several words. `cwd` is below the step's `working_directory`, `shell` the step's if left out. Raises
        `CommandInvalid` for a value without its placeholder, a placeholder inside quotes of the template, and values
        beside an argv list. `env` is added to `ctx.env` as it is when the command starts.
        """

    # ── log ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def log(self) -> Log: ...

    def group(self, title: str, /) -> AbstractContextManager[None]:
        """Fold what is logged inside under a title."""

    def mask(self, value: str, /) -> None:
        """Hide a value in everything that is logged from now on, in all the encodings in which secrets are hidden.

        Raises `ValueError` for a value of fewer than 3 bytes, which would hide half of the log. An empty one is fine.
        """

    def annotate(
        self, level: AnnotationLevel, message: str, /, *, file: str | None = None, line: int | None = None
    ) -> None:
        """A remark for the page of the run, about a line of the repository or about the step as a whole.

        At most 50 of a step; the rest is only logged.
        """

    def summary(self, markdown: str, /) -> None:
        """Add to the step's summary on the page of the run. Together at most 64 KiB of a step."""

    # ── environment and secrets ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def env(self) -> Mapping[str, str]:
        """The environment that the next command gets. Read-only: see `set_env`."""

    def set_env(self, name: str, value: str, /) -> None:
        """For the commands that follow, in this step and later ones of the job."""

    def add_path(self, directory: str | PathLike[str], /) -> None:
        """Put in front of `PATH`, for the commands that follow, in this step and later ones of the job."""

    @property
    def secrets(self) -> Mapping[str, str]:
        """The job's secrets: `ctx.secrets["NAME"]` (raises `SecretNotFound`), `.get`, `in`. The repr shows names."""

    def expose(self, name: str, /) -> None:
        """Put a secret into the environment of the commands that follow in this step, under its own name."""

    def set_secret_output(self, name: str, value: str, /) -> Pending[None]:
        """Give a secret to the jobs that need this one, where it is `ctx.secrets[name]`. Masked from now on.

        At most 20 of a job, of 64 KiB each.
        """

    # ── facts ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def event(self) -> Event: ...

    def event_as(self, of: type[V], /) -> V:
        """The event with the fields of its kind: `ctx.event_as(CommentEvent).body`. `OtherEvent` if it is another."""

    @property
    def payload(self) -> Any:
        """Body of the webhook as it came, decoded; None if there was none."""

    @property
    def inputs(self) -> Mapping[str, str]:
        """Inputs of a dispatch, a schedule or a manual start, as text."""

    def inputs_as(self, inputs: type[T], /) -> T:
        """The same, typed: `ctx.inputs_as(Inputs).target`, with the class that the trigger has.

        Where the event has none of them (it was a push) the class's defaults are taken; `InputInvalid` if one has none.
        """

    @property
    def git(self) -> Git: ...
    @property
    def run(self) -> RunFacts: ...
    @property
    def workflow(self) -> WorkflowFacts: ...
    @property
    def job(self) -> JobFacts: ...
    @property
    def matrix(self) -> Matrix: ...

    @property
    def fanout(self) -> Fanout: ...
    @property
    def agent(self) -> AgentFacts: ...

    @property
    def outcome(self) -> Outcome:
        """How the job ended, in its hooks."""

    @property
    def environment(self) -> str:
        """Name of the deployment environment; empty if the job has none."""

    @property
    def cancelled(self) -> Cancelled: ...

    # ── what others have returned ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def needs(self) -> Needs: ...

    @overload
    def outputs(self, source: Step[T], /, *, job: Job[Any] | str | None = None) -> T: ...
    @overload
    def outputs(self, source: Job[T], /) -> T: ...
    @overload
    def outputs(self, source: str, /, *, job: Job[Any] | str | None = None) -> Any:
        """What a step of this job, a step of a needed job, or a needed job that is one function has returned.

        Looked for in this job first, unless `job` names another. The value is rebuilt by `kici.sdk.outputs.from_data`
        after the step's annotation. Raises `NoOutput` if it has returned nothing, `OutputsOfMany` for a step of a
        needed job with a matrix, `KeyError` for what is neither here nor in a needed job, and for a step that several
        needed jobs have.
        """

    @overload
    def outputs_all(self, source: Step[T], /, *, job: Job[Any] | Jobs | str | None = None) -> list[Output[T]]: ...
    @overload
    def outputs_all(self, source: Job[T], /) -> list[Output[T]]: ...
    @overload
    def outputs_all(self, source: Jobs, /) -> list[Output[Any]]: ...
    @overload
    def outputs_all(self, source: str, /, *, job: Job[Any] | Jobs | str | None = None) -> list[Output[Any]]:
        """Of every instance of a needed job, in the order of the matrix; never of this job.

        Of a generator: of every job that it made, in their order. The value of one that is a function is what it
        returned, of one that has steps a dictionary by their names; with a step, what that step returned.
        """

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def artifacts(self) -> Artifacts: ...

    def cache(self, key: str, paths: str | Sequence[str], /, *, restore: str | Sequence[str] = ()) -> CacheUse:
        """Restore files at the beginning of a block, and save them at its end if it raises nothing.

        Key, paths and prefixes as in `kici.cache`. Raises `DefinitionError` for a path that leaves the checkout and the
        home directory; that a cache cannot be reached is told in the log and counts as no entry.
        """

    # ── others ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def emit(self, name: str, payload: Any = None, /) -> Pending[str]:
        """Send an event that workflows with `kici_event(name)` wait for; returns its id.

        The payload is what JSON can hold, at most 64 KiB. Sent once, also if the job runs again on another machine.
        """

    @overload
    def wait_for(
        self, fn: Callable[[], Awaitable[T | None]], /, *, every: Duration = "2s", timeout: Duration = "60s"
    ) -> Pending[T]: ...
    @overload
    def wait_for(
        self, fn: Callable[[], T | None], /, *, every: Duration = "2s", timeout: Duration = "60s"
    ) -> Pending[T]: ...
    def wait_for(self, fn: Any, /, *, every: Duration = "2s", timeout: Duration = "60s") -> Pending[Any]:
        """Call `fn` until it returns something else than None or False, and return that.

        Raises `WaitTimeout` when the time is over, also while `fn` runs, and whatever `fn` raises.
        """
