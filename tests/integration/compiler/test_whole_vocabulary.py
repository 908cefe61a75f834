"""Rules, hooks, caches, init, groups, generators and dynamic options in the lock file, and what is said about them."""

from __future__ import annotations

import json

from kici.engine import lockfile
from kici.engine.lockfile import HOOKS, LockCache, LockNeed, LockParallel, LockRule, LockWorkflow, StepKind
from tests.integration.compiler.conftest import Repository

RICH = """
from kici import cache, changed, hook, jobs, parallel, rule, setup, skip_if

def ask(ctx): return True
def tidy(ctx): ...

build = job(
    "build", runs_on="linux", timeout="20m",
    rules=[changed("src/**"), rule("asked", ask), skip_if("draft", ask)],
    init=["make deps", setup("make more", timeout="1m", env={"A": "{branch}"})],
    cache=cache("deps-{hash:lock}", paths="deps", restore="deps-"),
    steps=[
        step("compile", "make", env={"REF": "{ref}"}, rules=ask, cleanup="make clean", cache=cache("o", paths="o")),
        parallel("make lint", "make test", fail_fast=False, max_parallel=1, name="checks"),
    ],
    before_step=tidy, on_failure=hook(tidy, timeout="1m"), cleanup="docker compose down",
)

@jobs("shards", needs=[build], runs_on="arm64")
async def shards(ctx):
    yield build

after = job("after", runs_on="linux", needs=[shards.when("always")], matrix=lambda ctx: ["a"],
            environment=lambda ctx: "staging", steps=["true"])
ci = workflow("ci", on=push(), jobs=[build, shards, after], on_cancel=tidy, rules=changed("!docs/**"))
"""


def locked(repository: Repository) -> LockWorkflow:
    compiled = repository.compile()
    assert compiled.problems == ()
    assert compiled.lock
    return compiled.lock.workflows[0]


def test_all_that_runs_of_a_job_stands_among_its_steps_in_its_order(repository: Repository) -> None:
    repository.module("ci.py", RICH)
    build = locked(repository).jobs[0]
    assert [(step.name, step.kind.value) for step in build.steps] == [
        ("cache: restore", "cache_restore"),
        ("init: make deps", "init"),
        ("init: make more", "init"),
        ("compile", "step"),
        ("make lint", "step"),
        ("make test", "step"),
        ("cache: save", "cache_save"),
        ("hook: on_failure", "on_failure"),
        ("hook: cleanup", "cleanup"),
        ("workflow hook: on_cancel", "on_cancel"),
    ]
    assert [step.timeout_ms for step in build.steps[1:4]] == [600_000, 60_000, 1_800_000]
    assert build.steps[0].caches == (LockCache("deps-{hash:lock}", ("deps",), ("deps-",)),)
    assert build.steps[2].env == {"A": "{branch}"}
    assert build.steps[8].command == "docker compose down"
    assert [step.of_workflow for step in build.steps if step.kind in HOOKS] == [False, False, True]
    assert build.parallel == (LockParallel("checks", 4, 2, fail_fast=False, max_parallel=1),)
    assert build.hooks == {"before_step": 300_000}
    compile_ = build.steps[3]
    assert (compile_.kind, compile_.env, compile_.hooks) == (StepKind.STEP, {"REF": "{ref}"}, {"cleanup": 300_000})
    assert compile_.rules == (LockRule("ask"),)


def test_rules_generators_and_dynamic_options(repository: Repository) -> None:
    repository.module("ci.py", RICH)
    ci = locked(repository)
    assert ci.rules == (LockRule("changed !docs/**", ("!docs/**",)),)
    assert ci.jobs[0].rules == (
        LockRule("changed src/**", ("src/**",)),
        LockRule("asked"),
        LockRule("draft", negated=True),
    )
    assert [(one.name, one.runs_on, one.needs) for one in ci.generators] == [
        ("shards", ("arm64",), (LockNeed("build"),))
    ]
    after = next(job for job in ci.jobs if job.name == "after")
    assert (after.dynamic, after.matrix, after.environment) == (("environment", "matrix"), None, None)


def test_what_is_decided_on_an_agent_is_told_with_its_cost(repository: Repository) -> None:
    repository.module("ci.py", RICH)
    notes = [str(note) for note in repository.compile().notes]
    assert len(notes) == 2
    assert "job 'after': environment and matrix are given by a function, so a job `init: after`" in notes[0]
    assert "jobs 'shards' are made by a function, so a job `init: shards`" in notes[1]


def test_functions_that_take_something_else_than_ctx_are_errors_at_their_lines(repository: Repository) -> None:
    repository.module(
        "ci.py",
        """
        from kici import jobs, rule
        def two(a, b): ...
        one = job("one", runs_on="linux", steps=[step("s", "true", cleanup=two)], rules=rule("r", two), cleanup=two,
                  matrix=two)
        @jobs("many")
        def many(): ...
        ci = workflow("ci", on=push(), jobs=[one, many])
        """,
    )
    subjects = sorted(problem.split(": its function")[0] for problem in repository.problems())
    assert subjects == [
        "ci.py:4: job 'one': cleanup",
        "ci.py:4: step 's': cleanup",
        "ci.py:5: job 'one': matrix",
        "ci.py:5: job 'one': rule 'r'",
        "ci.py:7: jobs 'many'",
    ]


def test_a_generator_that_is_not_listed_is_named(repository: Repository) -> None:
    repository.module(
        "ci.py",
        """
        from kici import jobs
        @jobs("shards")
        def shards(ctx): ...
        after = job("after", runs_on="linux", needs=[shards], steps=["true"])
        ci = workflow("ci", on=push(), jobs=[after])
        """,
    )
    problems = repository.problems()
    assert len(problems) == 1
    assert "it needs 'shards', which is not listed: add it to jobs=[…]" in problems[0]


def test_steps_of_a_group_cannot_read_each_others_outputs(repository: Repository) -> None:
    repository.module(
        "ci.py",
        """
        from kici import parallel
        @step
        def first(ctx: Ctx) -> int: return 1
        @step
        def second(ctx: Ctx) -> int: return ctx.outputs(first)
        @step
        def third(ctx: Ctx) -> int: return ctx.outputs(first)
        ci = workflow("ci", on=push(), jobs=[job("a", runs_on="linux", steps=[parallel(first, second), third])])
        """,
    )
    assert repository.problems() == [
        "ci.py:7: ctx.outputs(first) in job 'a': the step runs at the same time: read it in a step after the group"
    ]


def test_a_group_of_one_step_is_a_warning(repository: Repository) -> None:
    repository.module(
        "ci.py",
        """
        from kici import parallel
        ci = workflow("ci", on=push(), jobs=[job("a", runs_on="linux", steps=[parallel("true")])])
        """,
    )
    (warning,) = repository.compile().warnings
    assert "the group 'parallel-1' has one step" in str(warning)


# ── hash_files ────────────────────────────────────────────────────────────────────────────────────────────────────────

HASHING = """
ci = workflow("ci", on=push(), jobs=[job("a", runs_on="linux", steps=["true"])], hash_files=["*.lock", "!bad.lock"])
"""


def test_files_that_a_workflow_stands_on_change_its_content_hash(repository: Repository) -> None:
    repository.module("ci.py", HASHING)
    repository.file("uv.lock", "1\n")
    repository.file(".dot.lock", "1\n")
    repository.file("bad.lock", "1\n")
    first = locked(repository)
    assert sorted(first.hashed_files) == [".dot.lock", "uv.lock"]
    repository.file("bad.lock", "2\n")
    repository.file("other.txt", "2\n")
    assert locked(repository) == first
    repository.file("uv.lock", "1\r\n")
    assert locked(repository) == first
    repository.file("uv.lock", "2\n")
    assert locked(repository).content_hash != first.content_hash


def test_globs_that_find_nothing_are_an_error(repository: Repository) -> None:
    repository.module("ci.py", HASHING)
    assert repository.problems() == [
        "ci.py:3: workflow 'ci': hash_files: no file of the repository matches *.lock, !bad.lock"
    ]


# ── sizes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_five_hundred_jobs_compile_and_one_more_does_not(repository: Repository) -> None:
    text = """
    names = [job(f"job-{{n:03}}", runs_on="linux", steps=["true"]) for n in range({count})]
    ci = workflow("ci", on=push(), jobs=names)
    """
    repository.module("ci.py", text.format(count=500))
    assert len(locked(repository).jobs) == 500
    repository.module("ci.py", text.format(count=501))
    assert repository.problems() == ["ci.py:4: workflow 'ci': it has 501 jobs; the limit is 500: split it"]


def test_a_lock_file_that_would_be_too_large_says_so(repository: Repository) -> None:
    repository.module(
        "ci.py",
        """
        many = [job(f"job-{n}", runs_on="linux", steps=["true # " + "x" * 60_000]) for n in range(90)]
        ci = workflow("ci", on=push(), jobs=many)
        """,
    )
    (problem,) = repository.compile().problems
    assert "the limit is 5,000,000: split the workflows over repositories" in str(problem)


def test_what_a_job_says_of_its_agent_and_a_workflow_of_its_jobs_stands_in_the_lock_file(
    repository: Repository,
) -> None:
    repository.module(
        "ci.py",
        """
        from kici import Resources
        made = job("made", runs_on="linux", steps=["true"], sandbox="isolated",
                   resources=Resources(requests={"memory": "64m"}, limits={"cpus": 1.5, "memory": "2g"}))
        ci = workflow("ci", on=push(), jobs=[made], permissions={"artifacts": "write", "events": "none"})
        none = workflow("none", on=push(), jobs=[made], permissions={})
        """,
    )
    compiled = repository.compile()
    assert compiled.problems == ()
    document = json.loads(compiled.data)
    ci, none = document["workflows"]
    assert ci["permissions"] == {"artifacts": "write"}
    assert none["permissions"] == {}
    (made,) = ci["jobs"]
    assert made["sandbox"] == "isolated"
    assert made["resources"] == {
        "requests": {"memoryBytes": 64 * 1024**2},
        "limits": {"cpuMillis": 1500, "memoryBytes": 2 * 1024**3},
    }
    assert "permissions" not in made
    assert lockfile.decode(compiled.data) == compiled.lock


def test_all_that_is_wrong_with_the_words_of_an_agent_is_told_at_once_with_its_line(repository: Repository) -> None:
    repository.module(
        "ci.py",
        """
        from kici import registry
        one = job("one", runs_on="linux", steps=["true"], resources={"memory": "4Gi"})
        two = job("two", runs_on="linux", steps=["true"], sandbox="isolate")
        inner = registry("http://packages.example.com/simple", token_secret="TOKEN")
        ci = workflow("ci", on=push(), jobs=[one, two], permissions={"contents": "read"})
        """,
    )
    found = [problem.partition(": write")[0] for problem in repository.problems()]
    assert [one.partition("; ")[0] for one in found] == [
        "ci.py:4: job 'one': resources: memory: '4Gi' is not a size",
        "ci.py:5: job 'two': sandbox: there is no 'isolate' (did you mean 'isolated'?)",
        "ci.py:6: registry('http://packages.example.com/simple'): its address is not encrypted, and would show the"
        " token to everybody on the way",
        "ci.py:7: workflow 'ci': permissions: 'contents' is not there yet: it is planned, but not in this version",
    ]


def test_a_cache_that_the_workflow_does_not_permit_is_a_warning(repository: Repository) -> None:
    repository.module(
        "ci.py",
        """
        from kici import cache
        one = job("one", runs_on="linux", steps=["true"], cache=cache("k", paths="p"))
        ci = workflow("ci", on=push(), jobs=[one], permissions={"caches": "read"})
        """,
    )
    (warning,) = map(str, repository.compile().warnings)
    assert (
        "job 'one': its cache is never saved: the workflow 'ci' gives its jobs no permission to save caches" in warning
    )
