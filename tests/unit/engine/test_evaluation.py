from __future__ import annotations

import base64
import random
import zlib

import pytest

from kici.engine.errors import EvaluationError
from kici.engine.evaluation import (
    MAX_BYTES,
    Evaluated,
    Generated,
    Values,
    filled,
    init_job,
    is_evaluation,
    pack,
    target,
    unpack,
)
from kici.engine.lockfile import (
    LockConcurrency,
    LockGenerator,
    LockJob,
    LockNeed,
    LockParallel,
    LockRule,
    LockStep,
    Retry,
    StepKind,
)
from kici.engine.templates import expand

FULL = LockJob(
    "shard",
    (
        LockStep("cache: restore", kind=StepKind.CACHE_RESTORE),
        LockStep("init: uv", kind=StepKind.INIT, command="uv sync"),
        LockStep("one", env={"A": "{branch}"}, rules=(LockRule("r"),), hooks={"cleanup": 5}, retry=Retry(3)),
        LockStep("two", continue_on_error=True, outputs={"type": "integer"}),
        LockStep("hook: cleanup", kind=StepKind.CLEANUP, command="rm -rf x"),
    ),
    ("linux", "gpu"),
    ("arm64",),
    (LockNeed("plan", ("success", "skipped")),),
    {"a": ("1", "2")},
    environment="prod",
    env={"B": "x"},
    concurrency=LockConcurrency("g", max=2),
    checkout=False,
    timeout_ms=1,
    grace_period_ms=2,
    retry_on_infra=Retry(2),
    priority=3,
    max_parallel=1,
    fail_fast=True,
    parallel=(LockParallel("both", 2, 2),),
    rules=(LockRule("c", ("src/**",), negated=True),),
    hooks={"before_step": 7},
    description="d",
)


def test_no_option_of_a_generated_job_is_lost_on_its_way() -> None:
    result = Evaluated(
        jobs=(Generated(FULL, Values({"x": ("1",)}, "e", {"A": "b"}, "g")), Generated(LockJob("b", (), ())))
    )
    assert unpack(pack(result)) == result


@pytest.mark.parametrize(
    "packed",
    [
        None,
        {},
        "",
        "no base64!",
        base64.b64encode(b"no zlib").decode(),
        base64.b64encode(zlib.compress(b"no json")).decode(),
        base64.b64encode(zlib.compress(b'{"jobs": 1}')).decode(),
        "A" * 200_000,
    ],
)
def test_a_result_that_cannot_be_read_is_an_error(packed: object) -> None:
    with pytest.raises(EvaluationError, match="result"):
        unpack(packed)


def test_a_small_message_does_not_unpack_to_more_than_the_limit() -> None:
    with pytest.raises(EvaluationError, match="more than 1,048,576 bytes"):
        unpack(base64.b64encode(zlib.compress(b" " * (MAX_BYTES * 20))).decode())


def test_a_result_that_is_too_large_is_refused_before_it_travels() -> None:
    with pytest.raises(EvaluationError, match="the limit is 1,048,576"):
        pack(Evaluated(values=Values({"a": ("x" * MAX_BYTES,)})))
    noise = random.Random(1).randbytes(300_000).hex()
    with pytest.raises(EvaluationError, match="bytes when packed; the limit is 196,608"):
        pack(Evaluated(values=Values({"a": (noise,)})))


def test_a_hundred_ordinary_jobs_fit() -> None:
    jobs = tuple(Generated(LockJob(f"shard-{n}", FULL.steps, FULL.runs_on)) for n in range(100))
    assert len(pack(Evaluated(jobs=jobs))) < 20_000


def test_what_functions_gave_is_literal_text() -> None:
    job = LockJob("a", (LockStep("run"),), ("linux",), dynamic=("concurrency", "env", "environment", "matrix"))
    found = filled(job, Values({"x": ("1",)}, "pr-{7}", {"A": "{branch}"}, "{}"))
    assert found.dynamic == ()
    assert found.matrix == {"x": ("1",)}
    assert found.concurrency
    texts = (found.environment or "", found.env["A"], found.concurrency.group)
    assert [expand(text, {"branch": "no"}, strict=True) for text in texts] == ["pr-{7}", "{branch}", "{}"]


def test_an_option_that_the_evaluation_did_not_give_is_an_error() -> None:
    job = LockJob("a", (LockStep("run"),), ("linux",), dynamic=("env", "matrix"))
    with pytest.raises(EvaluationError, match="job 'a': the evaluation gave no matrix"):
        filled(job, Values(env={}))


def test_the_job_that_asks_runs_where_and_when_the_dynamic_job_does() -> None:
    job = LockJob("a", (LockStep("run"),), ("gpu",), ("old",), (LockNeed("b", ("failed",)),), dynamic=("env", "matrix"))
    init = init_job(job)
    assert (init.name, init.runs_on, init.exclude_labels, init.needs) == ("init: a", ("gpu",), ("old",), job.needs)
    assert [(step.name, step.kind, step.timeout_ms) for step in init.steps] == [("evaluate", "evaluate", 120_000)]
    assert is_evaluation(init)
    assert not is_evaluation(job)
    assert target(init) == "a"
    assert init_job(LockGenerator("g", ("gpu",), timeout_ms=5)).steps[0].timeout_ms == 600_005
