from __future__ import annotations

from typing import Any

import pytest

from kici.engine.lockfile import (
    LockCache,
    LockCheckout,
    LockFile,
    LockGenerator,
    LockJob,
    LockNeed,
    LockParallel,
    LockRule,
    LockStep,
    LockWorkflow,
    PushTrigger,
    SourceLocation,
    StepKind,
)
from kici.engine.validation import validate

TWO = (LockStep("a"), LockStep("b"))


def problems(*jobs: LockJob, **options: Any) -> list[str]:
    workflow = LockWorkflow("ci", SourceLocation("ci.py"), "ci", "", (PushTrigger(),), jobs, **options)
    return validate(LockFile(1, "hash", {}, (workflow,)))


def job(name: str = "a", *needs: str, **options: Any) -> LockJob:
    options = {"steps": (LockStep("run"),), "runs_on": ("linux",)} | options
    return LockJob(name, needs=tuple(LockNeed(need) for need in needs), **options)


def step(**options: Any) -> LockJob:
    return job(steps=(LockStep("s", **options),))


def generator(name: str, *needs: str, **options: Any) -> LockGenerator:
    return LockGenerator(name, ("linux",), needs=tuple(LockNeed(need) for need in needs), **options)


def test_a_workflow_may_have_generators_alone_and_needs_on_them() -> None:
    assert problems(generators=(generator("g"),)) == []
    assert problems(job("a"), job("c", "g"), generators=(generator("g", "a"),)) == []


def test_everything_that_kici_compile_writes_passes() -> None:
    cache = LockCache("{os}-{arch}-{hash:uv.lock,*.toml}-{branch}", ("~/.cache/uv", "dist"), ("{os}-",))
    steps = (
        LockStep("r", kind=StepKind.CACHE_RESTORE, caches=(cache,)),
        LockStep("i", kind=StepKind.INIT, command="true", caches=(cache,), env={"A": "{branch}"}),
        LockStep(
            "a", rules=(LockRule("x", ("src/**", "!**/*.md")), LockRule("f")), hooks={"cleanup": 1, "on_cancel": 1}
        ),
        LockStep("b"),
        LockStep("s", kind=StepKind.CACHE_SAVE, caches=(cache,)),
        LockStep("hook", kind=StepKind.CLEANUP, command="true"),
        LockStep("whook", kind=StepKind.ON_SUCCESS, of_workflow=True),
    )
    full = job(
        steps=steps, parallel=(LockParallel("p", 2, 2),), hooks={"before_step": 1, "after_step": 1}, dynamic=("matrix",)
    )
    assert problems(full, rules=(LockRule("r", ("docs/**",), negated=True),)) == []


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (problems(job("g"), generators=(generator("g"),)), "'g' is the name of a job and of a generator"),
        (problems(job("init: g"), generators=(generator("g"),)), "'init: g' is the name of a job and of a generator"),
        (problems(job("init: a"), job("a", dynamic=("env",))), "'init: a' is the name of a job and of a generator"),
        (problems(generators=(generator("g"), generator("g"))), "'g' is the name of"),
        (problems(generators=(generator("g", "nope"),)), "jobs 'g' needs 'nope', which is not among"),
        (problems(generators=(generator("g", "g"),)), "jobs 'g' needs itself"),
        (problems(job("a", "g"), generators=(generator("g", "a"),)), "in a circle: a → g → a"),
        (problems(generators=(LockGenerator("g", ()),)), "jobs 'g' says no label in runs_on"),
        (problems(generators=(generator("g", timeout_ms=0),)), "jobs 'g' has a timeout that is not positive"),
        (problems(job(dynamic=("steps",))), "'steps' cannot be dynamic; concurrency, env, environment, matrix can"),
        (problems(job(dynamic=("env", "env"))), "'env' stands twice in dynamic"),
        (problems(job(dynamic=("env",), env={"A": "b"})), "has a value for env, and says that it is dynamic"),
        (problems(job(dynamic=("matrix",), matrix={"a": ("1",)})), "has a value for matrix"),
        (problems(job(steps=TWO, parallel=(LockParallel("p", 1, 2),))), "parallel group 'p' has steps 1 to 2 of 2"),
        (problems(job(steps=TWO, parallel=(LockParallel("p", -1, 2),))), "parallel group 'p' has steps -1 to 0 of 2"),
        (problems(job(steps=TWO, parallel=(LockParallel("p", 0, 0),))), "parallel group 'p' has steps"),
        (problems(job(steps=TWO, parallel=(LockParallel("p", 0, 2), LockParallel("q", 1, 1)))), "overlaps another one"),
        (problems(job(steps=TWO, parallel=(LockParallel("p", 0, 1), LockParallel("p", 1, 1)))), "two parallel groups"),
        (problems(job(steps=TWO, parallel=(LockParallel("p", 0, 2, max_parallel=0),))), "max_parallel 0"),
        (
            problems(
                job(steps=(LockStep("i", kind=StepKind.INIT, command="x"), *TWO), parallel=(LockParallel("p", 0, 2),))
            ),
            "something else than steps",
        ),
        (problems(job(steps=(LockStep("a"), LockStep("i", kind=StepKind.INIT, command="x")))), "in another order"),
        (problems(step(kind=StepKind.EVALUATE)), "a step of kind evaluate, which only the orchestrator makes"),
        (problems(step(of_workflow=True)), "is no hook, and belongs to the workflow"),
        (problems(step(kind=StepKind.INIT)), "step 's' has no command"),
        (problems(job(checkout=LockCheckout(depth=-1))), "checkout has depth -1"),
        (problems(job(checkout=LockCheckout(sparse=("../x",)))), "'../x' is no directory"),
        (problems(job(checkout=LockCheckout(sparse=("a\nb",)))), "is no directory"),
        (problems(step(kind=StepKind.CACHE_SAVE)), "step 's' has no cache"),
        (problems(step(env={"A": "{nope}"})), "there is no {nope}"),
        (problems(step(caches=(LockCache("{nope}", ("x",)),))), "there is no {nope}"),
        (problems(step(caches=(LockCache("{hash:}", ("x",)),))), "{hash:} names no file"),
        (problems(step(caches=(LockCache("k", ("x",), ("{",)),))), "lone '{'"),
        (problems(step(caches=(LockCache("k", ("../x",)),))), "cache path '../x' leaves the checkout"),
        (problems(step(caches=(LockCache("k", ("~/",)),))), "cache path '~/' leaves"),
        (problems(step(rules=(LockRule("r", ()),))), "rule 'r' names no file"),
        (problems(job(rules=(LockRule("r", ("[",)),))), "rule 'r'"),
        (problems(job(), rules=(LockRule("r", ()),)), "the workflow: rule 'r' names no file"),
        (problems(step(hooks={"before_step": 1})), "has no hook 'before_step'; it may have on_cancel, cleanup"),
        (problems(job(hooks={"cleanup": 1})), "has no hook 'cleanup'; it may have before_step, after_step"),
        (problems(job(hooks={"before_step": 0})), "hook before_step has a timeout that is not positive"),
    ],
)
def test_what_is_wrong_is_said(found: list[str], problem: str) -> None:
    assert any(problem in one for one in found), found
