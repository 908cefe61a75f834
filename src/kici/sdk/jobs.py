"""Jobs: steps that run on one agent, in one checkout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypedDict, TypeVar, get_args, overload

from msgspec import Struct

from kici.sdk.caches import Cache, checked_caches
from kici.sdk.checkouts import Checkout, checked_checkout
from kici.sdk.concurrency import Concurrency, checked_concurrency
from kici.sdk.durations import Duration
from kici.sdk.hooks import AROUND_STEPS, AT_THE_END, Hook, HookLike, checked_hooks
from kici.sdk.labels import Labels, RunsOn, checked_runs_on
from kici.sdk.parallel import Group, Parallel, flattened
from kici.sdk.problems import Location, call_site, location_of, refuse
from kici.sdk.resources import Demand, ResourcesLike, checked_resources
from kici.sdk.rules import Rule, RuleLike, checked_rules
from kici.sdk.setup import Setup, SetupLike, checked_init
from kici.sdk.steps import DEFAULT_TIMEOUT_MS, Retry, Step, StepLike, checked_retry
from kici.sdk.values import (
    Scalar,
    checked_description,
    checked_duration,
    checked_env,
    checked_flag,
    checked_name,
    checked_scalar,
    checked_template,
    one_of,
)
from kici.sdk.vocabulary import JOB_OPTIONS, check_options

if TYPE_CHECKING:
    from typing import Required, Unpack

    from kici.sdk.context import Ctx
    from kici.sdk.generators import Generator

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Ending: TypeAlias = Literal[
    "success", "failed", "cancelled", "skipped", "timed_out_stale", "drift_dropped", "infra_lost"
]
Condition: TypeAlias = Literal["on_success", "always", "on_skip", "on_failure"]
ENDINGS: tuple[Ending, ...] = get_args(Ending)
_CONDITIONS: dict[str, tuple[Ending, ...]] = {
    "on_success": ("success",),
    "always": ENDINGS,
    "on_skip": ("success", "skipped"),
    "on_failure": ("failed", "timed_out_stale", "drift_dropped", "infra_lost"),
}
DEFAULT_GRACE_PERIOD_MS = 30_000
SandboxName: TypeAlias = Literal["isolated", "bubblewrap", "container", "none", "image-build"]
SANDBOXES: tuple[SandboxName, ...] = get_args(SandboxName)
MAX_PRIORITY = 1_000

Dimensions: TypeAlias = "Mapping[str, Sequence[Scalar]] | Sequence[Scalar]"
"""Dimensions by name; a plain list is one dimension called `value`."""
Dynamic: TypeAlias = "Callable[[Ctx], T | Coroutine[Any, Any, T]]"
"""A function that gives an option while the run goes, in a job of its own, `init: NAME`, which needs what the job
needs."""
DYNAMIC = ("concurrency", "env", "environment", "matrix")
"""Options that may be functions."""


class Need(Struct, frozen=True, eq=False):
    """Another job, and how it may end so that this one starts."""

    job: Job[Any] | Generator | str
    run_on: tuple[str, ...] = ("success",)

    @property
    def name(self) -> str:
        return self.job if isinstance(self.job, str) else self.job.name


NeedLike: TypeAlias = "Job[Any] | Generator | Need | str"


class JobOptions(TypedDict, total=False):
    runs_on: Required[RunsOn]
    """Labels that the agent must have: `"linux"`, `["linux", "gpu"]`, `labels(…)`."""
    needs: Sequence[NeedLike]
    matrix: Dimensions | Dynamic[Dimensions]
    include: Sequence[Mapping[str, Scalar]]
    exclude: Sequence[Mapping[str, Scalar]]
    environment: str | Dynamic[str]
    """Deployment environment, a template."""
    env: Mapping[str, Scalar] | Dynamic[Mapping[str, Scalar]]
    """Environment variables; the values are templates."""
    concurrency: str | Concurrency | Dynamic[str]
    rules: RuleLike | Sequence[RuleLike]
    """All must say yes, or the job is skipped."""
    init: SetupLike | Sequence[SetupLike]
    """What prepares the machine before the first step: commands, `setup(…)`, `mise()`, `uv_sync()`."""
    cache: Cache | Sequence[Cache]
    """Restored before all else; saved when every step has succeeded."""
    on_success: HookLike
    """After the steps. A failure fails the job."""
    on_failure: HookLike
    on_cancel: HookLike
    cleanup: HookLike
    """After all else, however the job ended. A failure fails the job."""
    before_step: HookLike
    """Before every step that runs. A failure is told in the log, no more."""
    after_step: HookLike
    checkout: bool | Checkout
    """False: an empty directory. `Checkout(…)`: more history, submodules, LFS, only some directories."""
    timeout: Duration
    """Of the whole job; none if left out."""
    grace_period: Duration
    """Between asking the steps to end and killing them; 30 seconds if left out."""
    retry_on_infra: Literal[False] | int | Retry
    """Start again when the machine was lost. Only for jobs that may run twice."""
    max_parallel: int
    """How many combinations of the matrix run at once; all if left out."""
    fail_fast: bool
    """After the first combination that does not succeed, cancel the others; False if left out."""
    priority: int
    """Each step is worth a minute of waiting in the queue; 0 if left out."""
    resources: ResourcesLike
    """What it needs of its machine and may use: `{"cpus": 2, "memory": "4g"}`."""
    sandbox: SandboxName
    """Only on an agent that keeps jobs so: `"isolated"` is bubblewrap or a container; with `"image-build"` the job may
    build images of containers."""
    description: str


class Job(Struct, Generic[T_co], frozen=True, eq=False, kw_only=True):
    """A job. One that is a single function returns T; one that is made of steps returns None. Make one by `job`."""

    name: str
    location: Location
    steps: tuple[Step[Any], ...]
    runs_on: Labels
    needs: tuple[Need, ...] = ()
    matrix: dict[str, tuple[str, ...]] | None = None
    include: tuple[dict[str, str], ...] = ()
    exclude: tuple[dict[str, str], ...] = ()
    environment: str | None = None
    env: dict[str, str] = {}
    concurrency: Concurrency | None = None
    checkout: bool | Checkout = True
    timeout_ms: int | None = None
    grace_period_ms: int = DEFAULT_GRACE_PERIOD_MS
    retry_on_infra: Retry | None = None
    max_parallel: int | None = None
    fail_fast: bool = False
    priority: int = 0
    resources: Demand | None = None
    sandbox: SandboxName | None = None
    parallel: tuple[Parallel, ...] = ()
    """Which of the steps run at the same time."""
    rules: tuple[Rule, ...] = ()
    init: tuple[Setup, ...] = ()
    caches: tuple[Cache, ...] = ()
    hooks: dict[str, Hook] = {}
    """By the option's name."""
    dynamic: dict[str, Callable[[Any], Any]] = {}
    """Options that are functions, by name: they have no value in the fields above."""
    description: str | None = None
    is_function: bool = False
    """Made by `@job`: its one step has the job's name."""

    def when(self, condition: Condition | Ending | Collection[Ending], /) -> Need:
        """For `needs`: also start after other endings of this job than success."""
        return need_of(self, condition)


def need_of(job: Job[Any] | Generator, condition: Condition | Ending | Collection[Ending]) -> Need:
    """`job.when(condition)`."""
    subject = f"{job.name}.when(…)"
    if isinstance(condition, str) and condition in _CONDITIONS:
        return Need(job, _CONDITIONS[condition])
    endings = (condition,) if isinstance(condition, str) else tuple(condition)
    known = (*_CONDITIONS, *ENDINGS) if isinstance(condition, str) else ENDINGS
    if not endings:
        refuse(subject, f"no ending is given; there are {', '.join(ENDINGS)}")
    if not endings or not all(one_of(subject, "condition", ending, known) for ending in endings):
        return Need(job)
    return Need(job, tuple(ending for ending in ENDINGS if ending in endings))


class JobDecorator(Protocol):
    @overload
    def __call__(self, fn: Callable[[Ctx], Coroutine[Any, Any, T]], /) -> Job[T]: ...
    @overload
    def __call__(self, fn: Callable[[Ctx], T], /) -> Job[T]: ...
    def __call__(self, fn: Any, /) -> Job[Any]: ...


@overload
def job(name: str, /, *, steps: Sequence[StepLike | Group], **options: Unpack[JobOptions]) -> Job[None]: ...
@overload
def job(**options: Unpack[JobOptions]) -> JobDecorator: ...
def job(*given: Any, **options: Any) -> Any:
    """A job: `@job(runs_on="linux")` on a function, or `job("name", runs_on="linux", steps=[…])`."""
    if not given and "steps" not in options:
        return lambda fn: _of_function(fn, options)
    if len(given) == 1 and callable(given[0]):
        refuse("job", 'a job must say where it runs: write @job(runs_on="linux")')
        return _of_function(given[0], {"runs_on": "linux"})
    location = call_site()
    name = given[0] if given else None
    subject = f"job {name!r}"
    if len(given) != 1:
        refuse(subject, 'write job("name", runs_on="linux", steps=[…])')
    steps = options.pop("steps", ())
    if not steps:
        refuse(subject, 'it has no steps: write steps=["command", …], or put @job(…) on a function')
    flat, groups = flattened(subject, steps, location)
    return Job(
        name=checked_name(subject, name),
        location=location,
        steps=flat,
        parallel=groups,
        **_checked_options(subject, options),
    )


def _of_function(fn: object, options: dict[str, Any]) -> Job[Any]:
    name = getattr(fn, "__name__", "?")
    subject = f"job {name!r}"
    if not callable(fn):
        refuse(subject, f'{fn!r} is no function: put @job(…) on a function, or write job("name", steps=[…])')
        return Job(name="?", location=call_site(), steps=(), runs_on=Labels(("?",)))
    checked = _checked_options(subject, options)
    name = checked_name(subject, name)
    location = location_of(fn)
    # The one step may take as long as its job.
    limit = checked["timeout_ms"] or DEFAULT_TIMEOUT_MS
    only: Step[Any] = Step(name=name, location=location, fn=fn, timeout_ms=limit)
    return Job(name=name, location=location, steps=(only,), is_function=True, **checked)


def _checked_options(subject: str, options: dict[str, Any]) -> dict[str, Any]:
    check_options(subject, options, JobOptions.__annotations__, JOB_OPTIONS)
    dynamic = {name: options[name] for name in DYNAMIC if callable(options.get(name))}
    options = {name: value for name, value in options.items() if name not in dynamic}
    return {
        "dynamic": dynamic,
        "runs_on": checked_runs_on(subject, options.get("runs_on")),
        "needs": checked_needs(subject, options.get("needs", ())),
        "matrix": checked_matrix(subject, options.get("matrix")),
        "include": _checked_entries(subject, "include", options.get("include", ())),
        "exclude": _checked_entries(subject, "exclude", options.get("exclude", ())),
        "environment": checked_template(subject, "environment", options.get("environment")),
        "env": checked_env(subject, options.get("env")),
        "concurrency": checked_concurrency(subject, options.get("concurrency")),
        "checkout": checked_checkout(subject, options.get("checkout", True)),
        "timeout_ms": checked_duration(subject, "timeout", options.get("timeout"), None),
        "grace_period_ms": checked_duration(
            subject, "grace_period", options.get("grace_period"), DEFAULT_GRACE_PERIOD_MS
        ),
        "retry_on_infra": checked_retry(subject, "retry_on_infra", options.get("retry_on_infra")),
        "max_parallel": _checked_max_parallel(subject, options.get("max_parallel")),
        "fail_fast": checked_flag(subject, "fail_fast", options.get("fail_fast", False)),
        "priority": _checked_priority(subject, options.get("priority", 0)),
        "resources": checked_resources(subject, options.get("resources")),
        "sandbox": _checked_sandbox(subject, options.get("sandbox")),
        "rules": checked_rules(subject, options.get("rules")),
        "init": checked_init(subject, options.get("init")),
        "caches": checked_caches(subject, options.get("cache")),
        "hooks": checked_hooks(subject, options, (*AROUND_STEPS, *AT_THE_END)),
        "description": checked_description(subject, options.get("description")),
    }


def checked_needs(subject: str, value: object) -> tuple[Need, ...]:
    from kici.sdk.generators import Generator

    several = value if isinstance(value, (list, tuple)) else (value,)
    found: list[Need] = []
    for one in several:
        need = one if isinstance(one, Need) else Need(one) if isinstance(one, (Job, Generator, str)) else None
        if need is None:
            refuse(subject, f"needs: {one!r} is no job: write the job, its name, or job.when(…)")
        elif need.name in [other.name for other in found]:
            refuse(subject, f"needs: {need.name!r} stands there twice")
        else:
            found.append(need)
    return tuple(found)


def checked_matrix(subject: str, value: object) -> dict[str, tuple[str, ...]] | None:
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        value = {"value": value}
    if not isinstance(value, Mapping):
        refuse(subject, f'matrix is {value!r}: write {{"name": ["value", …]}}')
        return None
    found = {}
    for name, values in value.items():
        if not isinstance(name, str) or not name.isidentifier():
            refuse(subject, f"matrix: {name!r} cannot be the name of a dimension: write letters, digits and _")
        elif isinstance(values, str) or not isinstance(values, Sequence):
            refuse(subject, f"matrix: {name} is {values!r}: write a list")
        else:
            found[name] = tuple(checked_scalar(subject, f"matrix {name}", one) for one in values)
    return found


def _checked_entries(subject: str, option: str, value: object) -> tuple[dict[str, str], ...]:
    found = []
    for entry in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(entry, Mapping):
            found.append({str(name): checked_scalar(subject, f"{option} {name}", one) for name, one in entry.items()})
        else:
            refuse(subject, f'{option}: {entry!r} is no combination: write [{{"name": "value"}}]')
    return tuple(found)


def _checked_max_parallel(subject: str, value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    refuse(subject, f"max_parallel is {value!r}: write a whole number from 1, or leave it out for all at once")
    return None


def _checked_sandbox(subject: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        refuse(subject, f"sandbox is {value!r}: write one of {', '.join(SANDBOXES)}")
        return None
    return value if one_of(subject, "sandbox", value, SANDBOXES) else None


def _checked_priority(subject: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_PRIORITY:
        return value
    refuse(subject, f"priority is {value!r}: write a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    return 0
