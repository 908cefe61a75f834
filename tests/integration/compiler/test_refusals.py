"""Sources that cannot become a lock file, and what their authors read."""

from __future__ import annotations

import re
from typing import Any

import pytest

HEAD = "import re\nfrom kici import Ctx, job, manual, push, workflow\n"
GOOD = """
hello = job("hello", runs_on="linux", steps=["true"])
ci = workflow("ci", on=manual(), jobs=[hello])
"""


@pytest.mark.parametrize(
    ("source", "line", "said"),
    [
        ("def broken(:\n    pass\n", 1, "syntax error"),
        ("import sys\n\nsys.exit(0)\n", 3, "it ends the process when it is imported"),
        ("\nraise RuntimeError('no\\nway')\n", 2, "it cannot be imported: RuntimeError: no way"),
        ("\nimport nowhere_to_be_found\n", 2, "No module named 'nowhere_to_be_found'"),
        ("import os\nos._exit(3)\n", 0, "ended the process (exit code 3)"),
        ("import os\nprint('Timeout')\nos._exit(0)\n", 0, "ended the process (exit code 0)"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", 0, "ended the process (signal 9)"),
        ("from kici import schedule\n", 1, "kici has no 'schedule' yet: it is planned"),
        ("raise KeyboardInterrupt\n", 1, "KeyboardInterrupt"),
    ],
)
def test_a_module_that_cannot_be_imported(repo: Any, source: str, line: int, said: str) -> None:
    repo.write("workflows/ci.py", source)
    (problem,) = repo.compile().problems
    assert (problem.file, problem.line) == (".kici/workflows/ci.py", line)
    assert said in problem.message


def test_a_loop_at_the_top_level_is_ended_and_named(repo: Any) -> None:
    repo.write("workflows/ci.py", "x = 1\nwhile True:\n    x += 1\n")
    (problem,) = repo.compile(limit_s=0.5).problems
    assert problem.file == ".kici/workflows/ci.py"
    assert problem.line in (2, 3)
    assert problem.message.startswith("importing it took more than 0.5 s")


def test_an_import_cycle_names_a_line_of_the_repository(repo: Any) -> None:
    repo.write("workflows/a.py", "from .b import two\none = 1\n" + HEAD + GOOD)
    repo.write("workflows/b.py", "from .a import one\ntwo = 2\n")
    problems = repo.compile().problems
    assert problems
    assert {problem.file for problem in problems} <= {".kici/workflows/a.py", ".kici/workflows/b.py"}
    assert "ImportError" in problems[0].message


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            'a = job("a", runs_on="linux", steps=["true"])\nb = job("a", runs_on="linux", steps=["true"])\n'
            'ci = workflow("ci", on=manual(), jobs=[a, b])',
            r"ci\.py:4: job 'a': another job has this name \(line 3\): rename one",
        ),
        (
            'a = job("a", runs_on="linux", steps=["true"])\nb = job("b", runs_on="linux", steps=["true"], needs=[a])\n'
            'ci = workflow("ci", on=manual(), jobs=[b])',
            r"ci\.py:4: job 'b': it needs 'a', which is not among the workflow's jobs: add it to jobs=\[…\]",
        ),
        (
            'a = job("build", runs_on="linux", steps=["true"])\n'
            'b = job("b", runs_on="linux", steps=["true"], needs=["biuld"])\n'
            'ci = workflow("ci", on=manual(), jobs=[a, b])',
            r"ci\.py:4: job 'b': it needs 'biuld', which is no job of this workflow; did you mean 'build'\?",
        ),
        (
            'a = job("a", runs_on="linux", steps=["true"], needs=["b"])\n'
            'b = job("b", runs_on="linux", steps=["true"], needs=["a"])\nci = workflow("ci", on=manual(), jobs=[a, b])',
            r"cycle|circle|wait for each other",
        ),
        (
            'a = job("a", runs_on="linux", steps=["true"])\n'
            'ci = workflow("ci", on=push(branches=re.compile("(?=x)")), jobs=[a])',
            r"\(\?=x\)",
        ),
        (
            'a = job("a", runs_on="linux", steps=["true"])\n'
            'ci = workflow("ci", on=push(branches=re.compile("x", re.VERBOSE)), jobs=[a])',
            r"has flags that RE2 lacks",
        ),
        (
            'a = job("a", runs_on="linux", steps=["true"], matrix={"x": []})\n'
            'ci = workflow("ci", on=manual(), jobs=[a])',
            r"matrix",
        ),
        (
            'a = job("a", runs_on="linux", steps=["true"], matrix={"x": list(range(300))})\n'
            'ci = workflow("ci", on=manual(), jobs=[a])',
            r"256",
        ),
        (
            'a = job("a", runs_on="linux", steps=["true"], concurrency="x-{brunch}")\n'
            'ci = workflow("ci", on=manual(), jobs=[a])',
            r"brunch",
        ),
        (
            'a = job("a", runs_on="linux", steps=[])\nci = workflow("ci", on=manual(), jobs=[a])',
            r"job 'a': it has no steps",
        ),
        (
            'from x import y\nci = workflow("ci", on=manual(), jobs=[])',
            r"No module named 'x'",
        ),
        (
            '@job(runs_on="linux")\ndef a(ctx: Ctx) -> object:\n    return object()\n'
            'ci = workflow("ci", on=manual(), jobs=[a])',
            r"ci\.py:3: step 'a': object cannot be recorded as an output",
        ),
    ],
    ids=lambda value: "" if "\n" in value else re.sub(r"\W+", "-", value)[:30],
)
def test_a_definition_that_cannot_be_compiled(repo: Any, source: str, said: str) -> None:
    repo.write("workflows/ci.py", HEAD + source + "\n")
    problems = repo.problems()
    assert problems
    assert any(re.search(said, problem) for problem in problems), problems
    assert all(problem.startswith(".kici/workflows/ci.py:") for problem in problems), problems


def test_two_workflows_of_one_name_name_each_other(repo: Any) -> None:
    repo.write("workflows/a.py", HEAD + GOOD)
    repo.write("workflows/b.py", HEAD + GOOD)
    assert repo.problems() == [
        ".kici/workflows/b.py:5: workflow 'ci': another workflow has this name (.kici/workflows/a.py:5): rename one"
    ]


def test_all_that_is_wrong_is_said_at_once(repo: Any) -> None:
    repo.write("workflows/a.py", "def broken(:\n")
    repo.write("workflows/b.py", "raise ValueError('x')\n")
    repo.write(
        "workflows/c.py",
        HEAD
        + 'a = job("a", runs_on="linux", steps=["true"], timeout="soon")\n'
        + 'b = job("b", steps=["true"], parallel=3)\n'
        + 'ci = workflow("ci", on=push, jobs=[a, b])\n',
    )
    found = {(problem.file, problem.line) for problem in repo.compile().problems}
    assert found == {
        (".kici/workflows/a.py", 1),
        (".kici/workflows/b.py", 1),
        (".kici/workflows/c.py", 3),
        (".kici/workflows/c.py", 4),
        (".kici/workflows/c.py", 5),
    }


def test_a_file_name_with_two_dots_is_refused(repo: Any) -> None:
    repo.write("workflows/ci.v2.py", HEAD + GOOD)
    (problem,) = repo.problems()
    assert "rename it so that its only dot is that of .py" in problem
