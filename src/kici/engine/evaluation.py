"""What the functions of a workflow give that are asked while the run goes: dynamic options and generated jobs.

They are asked in a job that `engine.plan` makes, `init: NAME`; its one step returns an `Evaluated`, packed.
"""

from __future__ import annotations

import binascii
import zlib

import msgspec
from msgspec import Struct

from kici.engine.errors import EvaluationError
from kici.engine.lockfile import LockConcurrency, LockGenerator, LockJob, LockNeed, LockStep, StepKind

PREFIX = "init: "
STEP = "evaluate"
"""Name of the only step, and so of the only output."""
DYNAMIC = frozenset({"concurrency", "env", "environment", "matrix"})
"""Options that may be functions."""
MAX_JOBS = 100
"""Of one generator."""
MAX_BYTES = 1_048_576
"""Of a result, before it is packed."""
MAX_PACKED_CHARS = 196_608
"""Of a result when it is packed: it travels in one message to the orchestrator."""
MAX_OUTPUT_BYTES = 65_536
"""Of all outputs of an ordinary job."""
FUNCTION_MS = 60_000
"""One function may take so long; that of a generator as long as the generator says."""
_INLINE_MS = 600_000
"""All functions of the jobs that a generator makes, together."""


class Values(Struct, frozen=True, omit_defaults=True):
    """What dynamic options stand for: literal text, no templates."""

    matrix: dict[str, tuple[str, ...]] | None = None
    environment: str | None = None
    env: dict[str, str] | None = None
    concurrency: str | None = None
    """Name of the group."""


class Generated(Struct, frozen=True, omit_defaults=True):
    job: LockJob
    values: Values = Values()
    """Of its dynamic options."""


class Evaluated(Struct, frozen=True, omit_defaults=True):
    values: Values = Values()
    """Of a dynamic job."""
    jobs: tuple[Generated, ...] = ()
    """Of a generator, in the order in which it made them."""


def init_name(name: str) -> str:
    """Of the job in which the functions of a job, or the generator, of that name are asked."""
    return PREFIX + name


def is_evaluation(job: LockJob) -> bool:
    return len(job.steps) == 1 and job.steps[0].kind is StepKind.EVALUATE


def target(job: LockJob) -> str:
    """Name of the job or generator that an evaluation job is for."""
    return job.name.removeprefix(PREFIX)


def output_limit(job: LockJob) -> int:
    """Bytes of all outputs of a job, encoded: what an evaluation gives may be more than what steps return."""
    return MAX_PACKED_CHARS + 1_024 if is_evaluation(job) else MAX_OUTPUT_BYTES


def init_job(of: LockJob | LockGenerator) -> LockJob:
    """Needs what the dynamic job, or the generator, needs, under the same conditions, and runs where it does."""
    job = of if isinstance(of, LockJob) else None
    limit_ms = FUNCTION_MS * len(of.dynamic) if isinstance(of, LockJob) else of.timeout_ms + _INLINE_MS
    return LockJob(
        name=init_name(of.name),
        steps=(LockStep(STEP, kind=StepKind.EVALUATE, timeout_ms=limit_ms, location=of.location),),
        runs_on=of.runs_on,
        exclude_labels=of.exclude_labels,
        needs=of.needs,
        retry_on_infra=job.retry_on_infra if job else None,
        priority=job.priority if job else 0,
        sandbox=job.sandbox if job else None,
        description=f"asks the workflow for {', '.join(job.dynamic) if job else 'the jobs'} of {of.name!r}",
        location=of.location,
    )


def awaited(of: LockJob | LockGenerator) -> tuple[LockNeed, ...]:
    """What the stand-in of a dynamic job or a generator needs: the same, and the evaluation."""
    return (*of.needs, LockNeed(init_name(of.name)))


def pack(result: Evaluated) -> str:
    """As the output of the evaluation's step. Raises `EvaluationError`."""
    data = msgspec.json.encode(result)
    if len(data) > MAX_BYTES:
        raise EvaluationError(f"the result has {len(data):,} bytes; the limit is {MAX_BYTES:,}: make fewer jobs")
    packed = binascii.b2a_base64(zlib.compress(data), newline=False).decode()
    if len(packed) > MAX_PACKED_CHARS:
        raise EvaluationError(
            f"the result has {len(packed):,} bytes when packed; the limit is {MAX_PACKED_CHARS:,}: make fewer jobs"
        )
    return packed


def unpack(packed: object) -> Evaluated:
    """Raises `EvaluationError`. `packed` may be anything: an agent has sent it."""
    if not isinstance(packed, str) or len(packed) > MAX_PACKED_CHARS:
        raise EvaluationError("the evaluation gave no result that can be read")
    try:
        inflating = zlib.decompressobj()
        data = inflating.decompress(binascii.a2b_base64(packed, strict_mode=True), MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise EvaluationError(f"the evaluation's result has more than {MAX_BYTES:,} bytes")
        return msgspec.json.decode(data, type=Evaluated)
    except (ValueError, zlib.error, msgspec.DecodeError) as error:
        raise EvaluationError(f"the evaluation's result cannot be read: {error}") from error


def filled(job: LockJob, values: Values) -> LockJob:
    """The job with what its functions gave in place of them. Raises `EvaluationError` if one of them gave nothing."""
    given = {
        "matrix": values.matrix,
        "environment": None if values.environment is None else _literal(values.environment),
        "env": None if values.env is None else {name: _literal(text) for name, text in values.env.items()},
        "concurrency": None if values.concurrency is None else _literal(values.concurrency),
    }
    changes: dict[str, object] = {"dynamic": ()}
    for option in job.dynamic:
        if given.get(option) is None:
            raise EvaluationError(f"job {job.name!r}: the evaluation gave no {option}")
        changes[option] = given[option]
    if "concurrency" in job.dynamic:
        policy = job.concurrency or LockConcurrency("")
        changes["concurrency"] = msgspec.structs.replace(policy, group=given["concurrency"])
    return msgspec.structs.replace(job, **changes)


def _literal(text: str) -> str:
    """A template that stands for just this text."""
    return text.replace("{", "{{").replace("}", "}}")
