"""What a step can read about its run: values, made by the runner before the first step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from msgspec import UNSET, Struct, UnsetType

from kici.sdk.errors import NoOutput, OutputsOfMany

if TYPE_CHECKING:
    from kici.sdk.generators import Generator
    from kici.sdk.jobs import Job

T = TypeVar("T")


class Event(Protocol):
    """What happened at the forge. An empty string, or 0, means that the event has no such thing.

    `kici.engine.events.Event` is one; its docstrings are the law.
    """

    @property
    def type(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def branch(self) -> str: ...
    @property
    def tag(self) -> str: ...
    @property
    def base_branch(self) -> str: ...
    @property
    def ref(self) -> str: ...
    @property
    def sha(self) -> str: ...
    @property
    def before(self) -> str: ...
    @property
    def repo(self) -> str: ...
    @property
    def default_branch(self) -> str: ...
    @property
    def pr_number(self) -> int: ...
    @property
    def is_fork(self) -> bool: ...
    @property
    def actor(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def changed_files(self) -> tuple[str, ...] | None: ...
    @property
    def source(self) -> str: ...
    @property
    def event_name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def body(self) -> str: ...
    @property
    def issue_number(self) -> int: ...
    @property
    def ref_type(self) -> str: ...
    @property
    def commit(self) -> str: ...
    @property
    def workflow(self) -> str: ...
    @property
    def job(self) -> str: ...
    @property
    def source_repo(self) -> str: ...
    @property
    def delivery_id(self) -> str: ...


class Git(Struct, frozen=True):
    """The commit that is checked out. Empty strings where the event has no such thing."""

    repo: str
    """`owner/name`"""
    ref: str
    """`refs/heads/main`, `refs/tags/v1`, `refs/pull/7/head`"""
    branch: str
    """Of a pull request its head branch."""
    tag: str
    sha: str
    base: str
    """The branch that a pull request wants to go to."""


class RunFacts(Struct, frozen=True):
    id: str
    url: str
    """Where people look at the run; empty on `kici run local`."""
    is_local: bool


class WorkflowFacts(Struct, frozen=True):
    name: str


class JobFacts(Struct, frozen=True):
    id: str
    name: str
    """As in the workflow, here and remotely."""
    full_name: str
    """With the values of the matrix: `build (3.11)`."""
    attempt: int
    """From 1; more than 1 after the machine of an earlier attempt was lost."""


class Fanout(Struct, frozen=True):
    """Place among the combinations of the job's matrix; 0 of 1 in a job without one."""

    index: int
    """From 0."""
    total: int

    @property
    def first(self) -> bool:
        return self.index == 0

    @property
    def last(self) -> bool:
        return self.index == self.total - 1


class AgentFacts(Struct, frozen=True):
    """The machine that runs the job. On `kici run local` its name is `local` and it has no labels."""

    name: str
    labels: tuple[str, ...]
    os: str
    arch: str


class Outcome(Struct, frozen=True):
    """How the job ended, for its hooks."""

    status: str
    """`success`, `failed`, `cancelled`; `running` outside of hooks at the end."""
    reason: str = ""
    failed_step: str = ""
    """Name of the step that failed the job."""
    duration_s: float = 0.0


class Matrix(Mapping[str, str]):
    """This instance's values, as `ctx.matrix.python` or `ctx.matrix["python"]`. Empty in a job without a matrix."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __getattr__(self, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            known = ", ".join(sorted(self._values)) or "nothing: the job has no matrix"
            raise AttributeError(f"the matrix has no {name!r}; it has {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Matrix({self._values!r})"


class Output(Struct, Generic[T], frozen=True):
    """What one instance of a fanned-out job returned."""

    name: str
    """The instance: `build (3.11)`."""
    status: str
    matrix: Matrix
    returned: T | UnsetType = UNSET

    @property
    def value(self) -> T:
        """Raises `NoOutput` if the instance ended before it returned anything: look at `status` first."""
        if isinstance(self.returned, UnsetType):
            raise NoOutput(f"{self.name} ended as {self.status} and returned nothing: look at .status before .value")
        return self.returned


class NeededInstance(Struct, frozen=True):
    """One instance of a needed job, after its end. A job without a matrix has one."""

    name: str
    status: str
    matrix: Matrix
    outputs: Mapping[str, Any]
    """Step's name → what it returned. A job that is one function has its value under its own name."""


class Needed(Sequence[NeededInstance]):
    """A needed job: iterate over its instances, or ask for the whole."""

    __slots__ = ("_instances",)

    _WORST_FIRST = ("infra_lost", "drift_dropped", "timed_out_stale", "failed", "cancelled", "skipped", "success")

    def __init__(self, instances: Sequence[NeededInstance]) -> None:
        self._instances = tuple(instances)

    @property
    def status(self) -> str:
        """Of several instances the worst."""
        return min((one.status for one in self._instances), key=self._rank, default="skipped")

    @property
    def outputs(self) -> Mapping[str, Any]:
        """Raises `OutputsOfMany` for a fanned-out job: iterate, or use `ctx.outputs_all`."""
        if len(self._instances) != 1:
            raise OutputsOfMany(
                f"the job ran {len(self._instances)} times: iterate over ctx.needs[…], or use ctx.outputs_all"
            )
        return self._instances[0].outputs

    @overload
    def __getitem__(self, index: int) -> NeededInstance: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[NeededInstance]: ...
    def __getitem__(self, index: int | slice) -> NeededInstance | Sequence[NeededInstance]:
        return self._instances[index]

    def __len__(self) -> int:
        return len(self._instances)

    def _rank(self, status: str) -> int:
        return self._WORST_FIRST.index(status) if status in self._WORST_FIRST else 0


class Needs(Protocol):
    """The jobs that this job needs, by object or by name."""

    def __getitem__(self, job: Job[Any] | Generator | str, /) -> Needed:
        """Of a generator: all jobs that it made. Raises `KeyError` with a sentence that names the needed jobs."""

    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def __contains__(self, job: object, /) -> bool: ...
