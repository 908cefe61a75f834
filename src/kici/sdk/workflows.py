"""Workflows: what starts which jobs. A workflow exists because a module's name holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from msgspec import Struct

from kici.sdk.concurrency import Concurrency, checked_concurrency
from kici.sdk.durations import Duration
from kici.sdk.generators import Generator
from kici.sdk.hooks import AT_THE_END, Hook, HookLike, checked_hooks
from kici.sdk.jobs import Job
from kici.sdk.permissions import PermissionsLike, checked_permissions
from kici.sdk.problems import Location, call_site, refuse
from kici.sdk.registries import Registry, RegistryLike, checked_registries
from kici.sdk.rules import Rule, RuleLike, checked_rules
from kici.sdk.triggers import Trigger, checked_triggers
from kici.sdk.values import (
    Scalar,
    checked_description,
    checked_duration,
    checked_env,
    checked_globs,
    checked_name,
)
from kici.sdk.vocabulary import WORKFLOW_OPTIONS, check_options

if TYPE_CHECKING:
    from typing import Required, Unpack


class WorkflowOptions(TypedDict, total=False):
    jobs: Required[Sequence[Job[Any] | Generator]]
    """All of them, also those that others need."""
    on: Trigger | Sequence[Trigger]
    """Any of these starts it."""
    concurrency: str | Concurrency
    timeout: Duration
    """Of the whole run; none if left out."""
    env: Mapping[str, Scalar]
    """Environment variables of all jobs; the values are templates."""
    rules: RuleLike | Sequence[RuleLike]
    """All must say yes. `changed` decides whether the workflow starts; functions are asked in every job."""
    permissions: PermissionsLike
    """What its jobs may do through the orchestrator: `{"artifacts": "write", "caches": "read"}`; everything if left
    out."""
    registries: RegistryLike
    """Private indexes from which the workflow's own packages come: `registry("https://…", token_secret="NAME")`."""
    hash_files: str | Sequence[str]
    """Files of the repository, as globs, that the workflow stands on: a change of one changes its content hash."""
    on_success: HookLike
    """The hooks of a workflow run in each of its jobs, after the job's own."""
    on_failure: HookLike
    on_cancel: HookLike
    cleanup: HookLike
    description: str


class Workflow(Struct, frozen=True, eq=False, kw_only=True):
    name: str
    location: Location
    on: tuple[Trigger, ...]
    jobs: tuple[Job[Any], ...]
    concurrency: Concurrency | None = None
    timeout_ms: int | None = None
    env: dict[str, str] = {}
    generators: tuple[Generator, ...] = ()
    rules: tuple[Rule, ...] = ()
    hooks: dict[str, Hook] = {}
    permissions: dict[str, str] | None = None
    registries: tuple[Registry, ...] = ()
    hash_files: tuple[str, ...] = ()
    description: str | None = None


def workflow(name: str, /, **options: Unpack[WorkflowOptions]) -> Workflow:
    """A workflow: `ci = workflow("ci", on=push(branches="main"), jobs=[lint, build])`."""
    given: dict[str, Any] = dict(options)
    subject = f"workflow {name!r}"
    check_options(subject, given, WorkflowOptions.__annotations__, WORKFLOW_OPTIONS)
    jobs, generators = _checked_jobs(subject, given.get("jobs"))
    return Workflow(
        name=checked_name(subject, name),
        location=call_site(),
        on=checked_triggers(subject, given.get("on", ())),
        jobs=jobs,
        generators=generators,
        rules=checked_rules(subject, given.get("rules")),
        hooks=checked_hooks(subject, given, AT_THE_END),
        permissions=checked_permissions(subject, given.get("permissions")),
        registries=checked_registries(subject, given.get("registries")),
        hash_files=checked_globs(subject, "hash_files", given.get("hash_files")),
        concurrency=checked_concurrency(subject, given.get("concurrency")),
        timeout_ms=checked_duration(subject, "timeout", given.get("timeout"), None),
        env=checked_env(subject, given.get("env")),
        description=checked_description(subject, given.get("description")),
    )


def _checked_jobs(subject: str, value: object) -> tuple[tuple[Job[Any], ...], tuple[Generator, ...]]:
    several = value if isinstance(value, (list, tuple)) else () if value is None else (value,)
    if not several:
        refuse(subject, "it has no jobs: write jobs=[…]")
    found: list[Job[Any]] = []
    generators: list[Generator] = []
    for one in several:
        if isinstance(one, Job):
            found.append(one)
        elif isinstance(one, Generator):
            generators.append(one)
        elif callable(one):
            name = getattr(one, "__name__", "the function")
            refuse(subject, f'jobs: {name} is a function: put @job(runs_on="linux") on it')
        else:
            refuse(subject, f"jobs: {one!r} is no job: write the jobs themselves")
    return tuple(found), tuple(generators)
