"""All errors of a compile come at once, each at its author's line, with what to write instead."""

from __future__ import annotations

from tests.integration.compiler.conftest import Repository


def test_all_errors_come_at_once_at_their_lines(repository: Repository) -> None:
    repository.module(
        "ci.py",
        """
        @step(timeout="20 minuts")
        async def slow(ctx: Ctx) -> None: ...

        build = job("build", runs_on="", steps=[slow], rules=[1])
        ci = workflow("ci", on=pr(events=["openned"]), jobs=[build])  # type: ignore
        """,
    )
    repository.module("other.py", 'ci = workflow("other", on=push, jobs=[])\n')
    problems = repository.problems()
    assert [problem.split(": ", 1)[0] for problem in problems] == [
        "ci.py:3",
        "ci.py:6",
        "ci.py:6",
        "ci.py:6",
        "ci.py:7",
        "other.py:3",
        "other.py:3",
    ]
    text = "\n".join(problems)
    assert "step 'slow': timeout: '20 minuts' is not a duration" in text
    assert "job 'build': rules: 1 is no rule" in text
    assert "pr(…): events: there is no 'openned' (did you mean 'opened'?)" in text
    assert "workflow 'other': on: push is a function, call it: push(…)" in text
    assert "workflow 'other': it has no jobs" in text


def test_names_that_collide(repository: Repository) -> None:
    repository.module(
        "a.py",
        """
        one = job("same", runs_on="linux", steps=["true", "true"])
        two = job("same", runs_on="linux", steps=[step("x", "true"), step("x", "false")])
        ci = workflow("ci", on=push(), jobs=[one, two])
        """,
    )
    repository.module("b.py", 'ci = workflow("ci", on=push(), jobs=[job("a", runs_on="linux", steps=["true"])])\n')
    repository.module(
        "c.py",
        """
        fanned = job("test", runs_on="linux", steps=["true"], matrix={"os": ["a", "b"]})
        odd = job("test (a)", runs_on="linux", steps=["true"])
        ci = workflow("c", on=push(), jobs=[fanned, odd])
        """,
    )
    assert repository.problems() == [
        "a.py:4: workflow 'ci': job 'same': two of its steps are called 'x': rename one",
        "a.py:4: workflow 'ci': two jobs are called 'same' (line 3): rename one",
        "b.py:3: workflow 'ci': .kici/workflows/a.py:5 has a workflow of this name already: rename one",
        "c.py:4: workflow 'c': job 'test (a)': one of its instances would be called 'test (a)', as one of 'test'",
    ]


def test_needs(repository: Repository) -> None:
    repository.module(
        "ci.py",
        """
        far = job("far", runs_on="linux", steps=["true"])
        near = job("near", runs_on="linux", steps=["true"], needs=[far])
        last = job("last", runs_on="linux", steps=["true"], needs=[near, "lats"])
        ci = workflow("ci", on=push(), jobs=[last])
        """,
    )
    assert repository.problems() == [
        "ci.py:4: workflow 'ci': job 'near': it needs 'far', which is not listed: add it to jobs=[…]",
        "ci.py:5: workflow 'ci': job 'last': it needs 'lats', which is not listed:"
        " write the job itself (did you mean 'last'?) in jobs=[…]",
        "ci.py:5: workflow 'ci': job 'last': it needs 'near', which is not listed: add it to jobs=[…]",
    ]


def test_jobs_that_need_each_other(repository: Repository) -> None:
    repository.module(
        "ci.py",
        """
        a = job("a", runs_on="linux", steps=["true"], needs=["c"])
        b = job("b", runs_on="linux", steps=["true"], needs=[a])
        c = job("c", runs_on="linux", steps=["true"], needs=[b])
        me = job("me", runs_on="linux", steps=["true"], needs=["me"])
        ci = workflow("ci", on=push(), jobs=[a, b, c])
        other = workflow("other", on=push(), jobs=[me])
        """,
    )
    problems = repository.problems()
    assert "ci.py:7: workflow 'ci': jobs need each other in a circle: a → c → b → a" in problems
    assert "ci.py:6: workflow 'other': job 'me' needs itself" in problems


def test_templates_matrices_and_patterns_are_checked(repository: Repository) -> None:
    repository.module(
        "ci.py",
        r"""
        import re
        a = job("a", runs_on="linux", steps=["x"], env={"X": "{brnch}"}, matrix={"os": ["l"]}, exclude=[{"oss": "l"}])
        b = job("b", runs_on="linux", steps=["true"], environment="{matrix.os}")
        c = job("c", runs_on="linux", steps=["true"], matrix={"n": list(range(300))})
        d = job("d", runs_on=labels("linux", not_="linux"), steps=["true"])
        ci = workflow("ci", on=push(branches=re.compile(r"(?=x)")), jobs=[a, b, c, d])
        """,
    )
    text = "\n".join(repository.problems())
    assert "ci.py:4: workflow 'ci': job 'a': template '{brnch}': there is no {brnch}" in text
    assert "ci.py:4: workflow 'ci': job 'a': exclude names 'oss', which its matrix does not have" in text
    assert "ci.py:5: workflow 'ci': job 'b': a template has {matrix.os}, but its matrix has no 'os'" in text
    assert "ci.py:6: workflow 'ci': job 'c' has a matrix that fails: the matrix has 300 combinations" in text
    assert "ci.py:7: workflow 'ci': job 'd' requires and excludes the label 'linux'" in text
    assert "ci.py:8: workflow 'ci': a trigger: " in text


def test_functions_and_what_they_return(repository: Repository) -> None:
    repository.module(
        "ci.py",
        """
        class Odd: ...

        @step
        def odd(ctx: Ctx) -> Odd: ...

        @step
        def unknown(ctx: Ctx) -> "Nowhere": ...

        @step
        def greedy(ctx: Ctx, more: int) -> None: ...

        a = job("a", runs_on="linux", steps=[odd, unknown, greedy])
        ci = workflow("ci", on=push(), jobs=[a])
        """,
    )
    problems = repository.problems()
    assert [problem.split(": ")[0] for problem in problems] == ["ci.py:5", "ci.py:8", "ci.py:11"]
    assert "step 'odd': Odd cannot be recorded as an output (Odd has no JSON form): return a dataclass" in problems[0]
    assert "step 'unknown': what unknown returns cannot be resolved" in problems[1]
    assert "step 'greedy': its function takes one argument, ctx" in problems[2]


def test_outputs_that_cannot_be_read_are_errors_at_their_lines(repository: Repository) -> None:
    repository.module(
        "ci.py",
        """
        @step
        async def version(ctx: Ctx) -> str:
            return ctx.outputs(later) + ctx.outputs(version)

        @step
        async def later(ctx: Ctx) -> str:
            ctx.outputs_all(version)
            return ctx.outputs(version)

        fanned = job("fanned", runs_on="linux", steps=[version, later], matrix={"n": [1, 2]})
        plain = job("plain", runs_on="linux", steps=[step("version", later.fn)])

        @job(runs_on="linux", needs=[fanned])
        async def reader(ctx: Ctx) -> None:
            ctx.outputs(version)
            ctx.outputs(fanned)
            ctx.outputs_all(version)
            ctx.outputs("nothing")
            ctx.outputs(version, job=plain)
            [ctx.outputs(later) for _ in range(2)]

        @job(runs_on="linux", needs=[fanned, plain])
        async def both(ctx: Ctx) -> None:
            ctx.outputs("version")
            ctx.outputs("version", job="plain")

        ci = workflow("ci", on=push(), jobs=[fanned, plain, reader, both])
        """,
    )
    assert [problem for problem in repository.problems() if "plain'" not in problem.split(": ")[1]] == [
        "ci.py:5: ctx.outputs(later) in job 'fanned': the step runs later",
        "ci.py:5: ctx.outputs(version) in job 'fanned': the step asks for what itself returns",
        "ci.py:9: ctx.outputs_all(version) in job 'fanned': it is a step of this job: use ctx.outputs",
        "ci.py:17: ctx.outputs(version) in job 'reader':"
        " job 'fanned' has a matrix, so there are several: use ctx.outputs_all",
        "ci.py:18: ctx.outputs(fanned) in job 'reader':"
        " the job is made of steps, and its steps have the outputs: name a step",
        "ci.py:20: ctx.outputs('nothing') in job 'reader': no job of the workflow has this step",
        "ci.py:21: ctx.outputs(version) in job 'reader': job 'plain' has no such step",
        "ci.py:22: ctx.outputs(later) in job 'reader':"
        " job 'fanned' has a matrix, so there are several: use ctx.outputs_all",
        "ci.py:26: ctx.outputs('version') in job 'both':"
        " 'fanned' and 'plain' both have this step: say which one by job=…",
    ]


def test_commands_that_are_built_from_values_are_warnings_and_with_strict_errors(repository: Repository) -> None:
    repository.module(
        "ci.py",
        """
        @job(runs_on="linux")
        async def a(ctx: Ctx) -> None:
            name = "x; rm -rf /"
            await ctx.sh(f"echo {name}")
            await ctx.sh("echo {}".format(name)).text()
            await ctx.sh("echo %s" % name)
            await ctx.sh("echo " + name)
            await ctx.sh(f"echo")
            await ctx.sh("echo " "{name}", name=name)
            await ctx.sh("echo " + "twice")
            await ctx.sh(["echo", name])

        ci = workflow("ci", on=push(), jobs=[a])
        """,
    )
    compiled = repository.compile()
    assert compiled.lock
    assert [(warning.line, warning.message.split(",")[0]) for warning in compiled.warnings] == [
        (6, "its command is built by an f-string"),
        (7, "its command is built by .format"),
        (8, "its command is built by %"),
        (9, "its command is built by +"),
    ]
    strict = repository.compile(strict=True)
    assert strict.lock is None
    assert strict.problems == compiled.warnings


def test_a_workflow_that_nothing_starts_is_a_warning(repository: Repository) -> None:
    repository.module("ci.py", 'ci = workflow("ci", jobs=[job("a", runs_on="linux", steps=["true"])])\n')
    assert [str(warning) for warning in repository.compile().warnings] == [
        ".kici/workflows/ci.py:3: workflow 'ci': it has no triggers, so nothing starts it: write on=manual() at least"
    ]


def test_limits_of_a_fan_out_without_one_are_a_warning(repository: Repository) -> None:
    repository.module(
        "ci.py",
        """
        a = job("a", runs_on="linux", steps=["true"], max_parallel=2)
        b = job("b", runs_on="linux", steps=["true"], fail_fast=True)
        c = job("c", runs_on="linux", steps=["true"], include=[{"x": 1}], max_parallel=2, fail_fast=True)
        ci = workflow("ci", on=push(), jobs=[a, b, c])
        """,
    )
    assert [(warning.line, warning.message) for warning in repository.compile().warnings] == [
        (3, "job 'a': it has no matrix, so max_parallel does nothing: leave it out"),
        (4, "job 'b': it has no matrix, so fail_fast does nothing: leave it out"),
    ]


def test_a_fan_out_that_may_not_run_at_all_is_an_error_at_its_line(repository: Repository) -> None:
    repository.module(
        "ci.py",
        """
        a = job("a", runs_on="linux", steps=["true"], matrix=[1, 2], max_parallel=0)
        ci = workflow("ci", on=push(), jobs=[a])
        """,
    )
    assert repository.problems() == [
        "ci.py:3: job 'a': max_parallel is 0: write a whole number from 1, or leave it out for all at once"
    ]
