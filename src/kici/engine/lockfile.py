"""The lock file `.kici/kici.lock.json`: what `kici compile` writes and every other part reads.

Durations are integers of milliseconds and say so in their key. Strings in a list of patterns are globs, `!` in front
excludes; a `Regex` is searched for, unanchored. Keys in the file are camelCase. The JSON Schema that we publish is
generated from these structs.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from types import NoneType
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import FieldInfo, fields

from kici.engine.errors import LockFileError
from kici.engine.lock_triggers import (
    DispatchTrigger,
    GenericWebhookTrigger,
    ManualTrigger,
    Node,
    Pattern,
    PrTrigger,
    PushTrigger,
    Regex,
    TagTrigger,
    Trigger,
)

__all__ = [
    "HOOKS",
    "MAX_BYTES",
    "MAX_JOBS_PER_WORKFLOW",
    "MAX_MATRIX_COMBINATIONS",
    "PATH",
    "SCHEMA_VERSION",
    "DispatchTrigger",
    "GenericWebhookTrigger",
    "Level",
    "LockAmount",
    "LockCache",
    "LockCheckout",
    "LockConcurrency",
    "LockFile",
    "LockGenerator",
    "LockJob",
    "LockNeed",
    "LockParallel",
    "LockRegistry",
    "LockResources",
    "LockRule",
    "LockSandbox",
    "LockStep",
    "LockWorkflow",
    "ManualTrigger",
    "Node",
    "Pattern",
    "PrTrigger",
    "PushTrigger",
    "Regex",
    "Retry",
    "SourceLocation",
    "StepKind",
    "SubmoduleLevels",
    "TagTrigger",
    "Trigger",
    "decode",
    "encode",
    "json_schema",
]

PATH = ".kici/kici.lock.json"
SCHEMA_VERSION = 1
MAX_BYTES = 5_000_000
MAX_JOBS_PER_WORKFLOW = 500
MAX_MATRIX_COMBINATIONS = 256


class SourceLocation(Node, frozen=True):
    file: str
    """Relative to the repository's root, with `/`."""
    line: int = 0
    """1-based; 0 = unknown."""


class Retry(Node, frozen=True):
    attempts: int
    """All of them: 1 = no retry."""
    delay_ms: int = 1_000
    backoff: str = "exponential"
    """`fixed` or `exponential` (doubling)."""
    max_delay_ms: int = 30_000


class LockRule(Node, frozen=True):
    """One thing that must be so. Those with `changed` are decided without running anything."""

    label: str
    changed: tuple[str, ...] | None = None
    """Globs, of which a changed file must match one; absent = a function of the module, found by its position."""
    negated: bool = False
    """It must not be so."""


class LockCache(Node, frozen=True):
    """Files that outlive the job, found again by a key."""

    key: str
    """Template, over `engine.templates` and `{os}`, `{arch}`, `{hash:GLOB,GLOB}` (SHA-256 of files in the checkout)."""
    paths: tuple[str, ...]
    """Relative to the checkout, or below `~/`."""
    restore: tuple[str, ...] = ()
    """Prefixes, templates too: the newest entry of the first that finds one is taken if nothing has the key."""


class StepKind(StrEnum):
    """What an entry of a job's steps is. All but `STEP` are made by `kici compile`, in the order of this list."""

    CACHE_RESTORE = "cache_restore"
    INIT = "init"
    STEP = "step"
    CACHE_SAVE = "cache_save"
    ON_SUCCESS = "on_success"
    ON_FAILURE = "on_failure"
    ON_CANCEL = "on_cancel"
    CLEANUP = "cleanup"
    EVALUATE = "evaluate"
    """The only one of a job that `engine.plan` makes: it asks the module for what the lock file cannot say."""


HOOKS = frozenset({StepKind.ON_SUCCESS, StepKind.ON_FAILURE, StepKind.ON_CANCEL, StepKind.CLEANUP})


class LockStep(Node, frozen=True):
    name: str
    command: str | None = None
    """A shell command; absent = a function of the workflow's module, found by its position."""
    timeout_ms: int = 1_800_000
    retry: Retry | None = None
    continue_on_error: bool = False
    outputs: dict[str, Any] | None = None
    """JSON Schema of what the step returns."""
    working_directory: str | None = None
    """Where its commands start, below the checkout; absent = the checkout."""
    shell: str = "bash"
    """What runs its commands: bash or sh."""
    location: SourceLocation | None = None
    kind: StepKind = StepKind.STEP
    of_workflow: bool = False
    """Of a hook: it is the workflow's, not the job's."""
    env: dict[str, str] = field(default_factory=dict)
    """Values are templates."""
    rules: tuple[LockRule, ...] = ()
    hooks: dict[str, int] = field(default_factory=dict)
    """`on_cancel` and `cleanup` of the step itself → limit in milliseconds."""
    caches: tuple[LockCache, ...] = ()


class LockParallel(Node, frozen=True):
    """Steps that run at the same time."""

    name: str
    first: int
    """Place of its first step among the job's steps, from 0."""
    size: int
    fail_fast: bool = True
    """The first failure cancels the others."""
    max_parallel: int | None = None


class LockNeed(Node, frozen=True):
    job: str
    """Base name: all combinations of a matrix. Or the name of a generator: all jobs that it makes."""
    run_on: tuple[str, ...] = ("success",)
    """Terminal job statuses that let the needing job start."""


class LockConcurrency(Node, frozen=True):
    group: str
    """Template."""
    cancel_in_progress: bool = False
    max: int = 1
    pending: str = "keep-latest"
    """`keep-latest` or `queue`."""


class SubmoduleLevels(StrEnum):
    NONE = "none"
    FIRST = "first"
    ALL = "all"


class LockCheckout(Node, frozen=True):
    depth: int = 1
    """Commits of history; 0 = all of it, and all branches."""
    submodules: SubmoduleLevels = SubmoduleLevels.NONE
    lfs: bool = False
    sparse: tuple[str, ...] = ()
    """Directories, relative to the repository; empty = all."""
    tags: bool = False
    """All of them; else those that point at what is fetched."""


class LockAmount(Node, frozen=True):
    cpu_millis: int | None = None
    """Thousandths of a core."""
    memory_bytes: int | None = None


class LockResources(Node, frozen=True):
    """A value that is absent is not asked for, or not limited."""

    requests: LockAmount = LockAmount()
    """What its agent must be able to give."""
    limits: LockAmount = LockAmount()
    """What all its processes may use together."""


class Level(StrEnum):
    """Of a permission; each lets what stands before it."""

    NONE = "none"
    READ = "read"
    WRITE = "write"


class LockSandbox(StrEnum):
    """How the agent must keep the job apart; `engine.labels.of_sandbox` says which agents do."""

    ISOLATED = "isolated"
    BUBBLEWRAP = "bubblewrap"
    CONTAINER = "container"
    NONE = "none"
    IMAGE_BUILD = "image-build"


class LockJob(Node, frozen=True):
    name: str
    steps: tuple[LockStep, ...]
    runs_on: tuple[Pattern, ...]
    exclude_labels: tuple[Pattern, ...] = ()
    needs: tuple[LockNeed, ...] = ()
    matrix: dict[str, tuple[str, ...]] | None = None
    include: tuple[dict[str, str], ...] = ()
    exclude: tuple[dict[str, str], ...] = ()
    environment: str | None = None
    """Template."""
    env: dict[str, str] = field(default_factory=dict)
    """Values are templates."""
    concurrency: LockConcurrency | None = None
    checkout: bool | LockCheckout = True
    """False: an empty directory; true: a checkout as `LockCheckout` describes it when nothing is said."""
    timeout_ms: int | None = None
    grace_period_ms: int = 30_000
    retry_on_infra: Retry | None = None
    priority: int = 0
    resources: LockResources | None = None
    sandbox: LockSandbox | None = None
    """Absent = whatever its agent has."""
    permissions: dict[str, Level] | None = None
    """Of its workflow: `engine.plan` puts them here. No job has its own."""
    max_parallel: int | None = None
    """Of the combinations of its matrix; absent = all at once."""
    fail_fast: bool = False
    """After the first combination that does not succeed, the others are halted."""
    parallel: tuple[LockParallel, ...] = ()
    rules: tuple[LockRule, ...] = ()
    hooks: dict[str, int] = field(default_factory=dict)
    """`before_step` and `after_step` → limit in milliseconds. The others stand among the steps."""
    dynamic: tuple[str, ...] = ()
    """Options that a function of the module gives: `concurrency`, `env`, `environment`, `matrix`."""
    description: str | None = None
    location: SourceLocation | None = None


class LockGenerator(Node, frozen=True):
    """A function of the module that makes jobs. They are known only once it has run, on an agent."""

    name: str
    runs_on: tuple[Pattern, ...]
    """Of the job in which it runs."""
    exclude_labels: tuple[Pattern, ...] = ()
    needs: tuple[LockNeed, ...] = ()
    timeout_ms: int = 60_000
    location: SourceLocation | None = None


class LockRegistry(Node, frozen=True):
    """A private index that the workflow's own packages come from."""

    url: str
    token_secret: str
    """Name of the secret that holds the token, never the token."""
    name: str | None = None
    """Of the index in `.kici/pyproject.toml`; absent = the one with this address."""


class LockWorkflow(Node, frozen=True):
    name: str
    source: SourceLocation
    export: str
    """Name in the module; `name[2]` for an element of a list or tuple."""
    content_hash: str
    """SHA-256 over the workflow's module, every module under `.kici/` that it imports, and `hashed_files`."""
    triggers: tuple[Trigger, ...]
    jobs: tuple[LockJob, ...]
    generators: tuple[LockGenerator, ...] = ()
    rules: tuple[LockRule, ...] = ()
    """Functions among them are asked in every job, before its own rules."""
    description: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    concurrency: LockConcurrency | None = None
    timeout_ms: int | None = None
    permissions: dict[str, Level] | None = None
    """What its jobs may do through the orchestrator, see `engine.permissions`; absent = everything."""
    registries: tuple[LockRegistry, ...] = ()
    hash_files: tuple[str, ...] = ()
    """Globs over the repository's files, as the author wrote them."""
    hashed_files: dict[str, str] = field(default_factory=dict)
    """What they matched when this was compiled: path → SHA-256, see `engine.kici_files.digest`."""


class LockFile(Node, frozen=True, omit_defaults=False):
    schema_version: int
    content_hash: str
    """SHA-256 over `files` and `workflows`."""
    files: dict[str, str]
    """Path below `.kici/` (with `/`) → SHA-256, see `engine.kici_files`. Without the lock file itself."""
    workflows: tuple[LockWorkflow, ...]


class _Header(Struct, rename="camel"):
    schema_version: Any = None
    lockfile_version: Any = None


def decode(data: bytes) -> LockFile:
    """Read a lock file strictly. Raises `LockFileError` with a sentence that says what is wrong and what to do.

    The bounds are those of the constants above. Regular expressions are compiled once, under RE2, by `engine.patterns`
    when the caller validates (`engine.plan.validate`).
    """
    if len(data) > MAX_BYTES:
        raise LockFileError(f"{PATH} has {len(data):,} bytes; the limit is {MAX_BYTES:,}: split the workflows")
    try:
        header = msgspec.json.decode(data, type=_Header)
    except msgspec.DecodeError as error:
        raise LockFileError(f"{PATH} is not a JSON object ({error}): run `kici compile` and commit it") from error
    version = header.schema_version
    if isinstance(version, bool) or not isinstance(version, int):
        raise LockFileError(f"{PATH} has no numeric schemaVersion: run `kici compile` and commit it")
    if b'"lockfileHash"' in data or b'"compileSchemaVersion"' in data:
        raise LockFileError(
            f"{PATH} was written by the TypeScript kici: port the workflows to Python and run `kici compile`"
        )
    if version > SCHEMA_VERSION:
        raise LockFileError(
            f"{PATH} has schemaVersion {version}, this orchestrator reads up to {SCHEMA_VERSION}:"
            " upgrade the orchestrator, or compile with an older kici"
        )
    if version < 1:
        raise LockFileError(f"{PATH} has schemaVersion {version}: run `kici compile` and commit it")
    try:
        lock = msgspec.json.decode(data, type=LockFile)
    except msgspec.ValidationError as error:
        raise LockFileError(f"{PATH} does not follow its schema: {error}. Run `kici compile` and commit it") from error
    for workflow in lock.workflows:
        if len(workflow.jobs) > MAX_JOBS_PER_WORKFLOW:
            raise LockFileError(
                f"{PATH}: workflow {workflow.name!r} has {len(workflow.jobs)} jobs;"
                f" the limit is {MAX_JOBS_PER_WORKFLOW}"
            )
    return lock


def encode(lock: LockFile) -> bytes:
    """The file's bytes: sorted keys, two blanks, a newline at the end; the same on every OS and Python version."""
    return msgspec.json.format(msgspec.json.encode(_written(lock), order="sorted"), indent=2) + b"\n"


def json_schema() -> dict[str, Any]:
    """JSON Schema of the lock file, as we publish it."""
    return msgspec.json.schema(LockFile)


_PLAIN = (str, int, bool, NoneType, float)


class _Written(Struct, frozen=True):
    """How structs of one type are written."""

    fields: tuple[tuple[str, str, Any], ...]
    """Name, key in the file, default."""
    tag: dict[str, str]


def _written(value: Any) -> Any:
    """What stands in the file. Not left to `omit_defaults`, which compares by identity: 30000 is not always 30000."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Struct):
        how = _how(type(value))
        written = dict(how.tag)
        for name, key, default in how.fields:
            one = getattr(value, name)
            if one is not default and one != default:
                written[key] = one if type(one) in _PLAIN else _written(one)
        return written
    if isinstance(value, dict):
        return {key: _written(one) for key, one in value.items()}
    return [_written(one) for one in value] if isinstance(value, tuple) else value


@cache
def _how(of: type[Struct]) -> _Written:
    config = of.__struct_config__
    tag = {} if config.tag is None else {str(config.tag_field): str(config.tag)}
    return _Written(tuple((one.name, one.encode_name, _default(one)) for one in fields(of)), tag)


def _default(one: FieldInfo) -> Any:
    """`NODEFAULT`, which no value is, for a required field."""
    if one.required:
        return msgspec.NODEFAULT
    return one.default if one.default is not msgspec.NODEFAULT else one.default_factory()
