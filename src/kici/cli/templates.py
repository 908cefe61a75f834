"""What `kici init` writes: a first workflow and its test. `@BRANCH@` becomes the default branch."""

from __future__ import annotations

CONFTEST = '''"""So that tests can import the workflows: `from workflows.ci import ci`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
'''

_HELLO = '''"""What runs when somebody pushes to @BRANCH@, or asks for a run."""

from kici import Ctx, job, manual, push, workflow


@job(runs_on="linux")
async def hello(ctx: Ctx) -> str:
    commit = await ctx.sh("git log --oneline -1").text()
    ctx.log.info(f"Hello from {ctx.git.branch}: {commit}")
    return commit


test = job("test", runs_on="linux", needs=[hello], matrix={"word": ["one", "two"]}, steps=["echo replace me"])


ci = workflow("ci", on=[push(branches="@BRANCH@"), manual()], jobs=[hello, test])
'''

_HELLO_TEST = '''"""Run it with `pytest .kici`."""

from kici.testing import FakeShell, plan, push_event, run_step
from workflows.ci import ci, hello


def test_a_push_to_the_default_branch_runs_everything() -> None:
    planned = plan(ci, push_event(branch="@BRANCH@"))
    assert planned.names == ["hello", "test (one)", "test (two)"]
    assert planned["test (one)"].needs == ("hello",)


def test_other_branches_run_nothing() -> None:
    assert plan(ci, push_event(branch="my-branch")).names == []


def test_hello_returns_the_last_commit() -> None:
    ran = run_step(hello, sh=FakeShell({"git log --oneline -1": "1a2b3c4 Fix it"}))
    assert ran.value == "1a2b3c4 Fix it"
'''

_PYTHON = '''"""Checks, tests and the wheel of a Python project that uses uv."""

from dataclasses import dataclass

from kici import Ctx, job, manual, pr, push, step, workflow


@job(runs_on="linux")
async def lint(ctx: Ctx) -> None:
    await ctx.sh("uvx ruff check .")
    await ctx.sh("uvx ruff format --check .")


test = job(
    "test",
    runs_on="linux",
    matrix={"python": ["3.11", "3.13"]},
    env={"UV_PYTHON": "{matrix.python}"},
    steps=["uv sync", "uv run pytest"],
)


@dataclass
class Wheel:
    files: list[str]


@step(timeout="5m")
async def build_wheel(ctx: Ctx) -> Wheel:
    await ctx.sh("uv build --wheel --out-dir dist")
    return Wheel(await ctx.sh("ls dist").lines())


@step
async def keep(ctx: Ctx) -> None:
    wheel = ctx.outputs(build_wheel)
    ctx.log.info("built", files=wheel.files)
    await ctx.artifacts.upload("wheel", "dist/*.whl")


build = job("build", runs_on="linux", needs=[lint, test], steps=[build_wheel, keep])


ci = workflow("ci", on=[push(branches="@BRANCH@"), pr(), manual()], jobs=[lint, test, build])
'''

_PYTHON_TEST = '''"""Run it with `pytest .kici`."""

import pytest

from kici import CommandFailed
from kici.testing import FakeShell, plan, pr_event, push_event, run_step
from workflows.ci import Wheel, build_wheel, ci, keep, lint


def test_a_pull_request_is_checked_and_built() -> None:
    assert plan(ci, pr_event()).names == ["lint", "test (3.11)", "test (3.13)", "build"]


def test_the_wheel_waits_for_all_tests() -> None:
    planned = plan(ci, push_event(branch="@BRANCH@"))
    assert planned["build"].needs == ("lint", "test (3.11)", "test (3.13)")


def test_the_wheel_is_built_and_kept() -> None:
    shell = FakeShell({"uv build --wheel --out-dir dist": "", "ls dist": "app-1.0.whl"})
    wheel = run_step(build_wheel, sh=shell).value
    assert wheel == Wheel(["app-1.0.whl"])
    assert run_step(keep, outputs={build_wheel: wheel}).told.uploaded == {"wheel": ("dist/*.whl",)}


def test_what_ruff_finds_fails_the_job() -> None:
    with pytest.raises(CommandFailed):
        run_step(lint, sh=FakeShell({"uvx ruff check .": 1}))
'''

_MONOREPO = '''"""A repository with several parts: what did not change is not built."""

from kici import changed, job, manual, pr, push, workflow

web = job("web", runs_on="linux", rules=changed("web/**"), steps=["echo build web"])
api = job("api", runs_on="linux", rules=changed("api/**", "shared/**"), steps=["echo build api"])


ci = workflow("ci", on=[push(branches="@BRANCH@"), pr(), manual()], jobs=[web, api])
'''

_MONOREPO_TEST = '''"""Run it with `pytest .kici`."""

from kici.testing import plan, push_event
from workflows.ci import ci


def test_what_did_not_change_is_not_built() -> None:
    planned = plan(ci, push_event(branch="@BRANCH@", changed=["shared/a.py"]))
    assert planned.names == ["api"]
    assert "web/**" in planned.skipped["web"]


def test_when_nobody_knows_what_changed_everything_is_built() -> None:
    assert plan(ci, push_event(branch="@BRANCH@")).names == ["web", "api"]
'''

TEMPLATES = {
    "hello": (_HELLO, _HELLO_TEST),
    "python": (_PYTHON, _PYTHON_TEST),
    "monorepo": (_MONOREPO, _MONOREPO_TEST),
}
"""Name → the workflow, and the test beside it."""


def files(template: str, branch: str) -> dict[str, str]:
    """Path in the repository → text."""
    workflow, test = TEMPLATES[template]
    return {
        ".kici/workflows/ci.py": _filled(workflow, branch),
        ".kici/conftest.py": CONFTEST,
        ".kici/tests/test_ci.py": _filled(test, branch),
    }


def _filled(text: str, branch: str) -> str:
    """A branch's name holds neither quotes that matter nor backslashes: git forbids the latter."""
    return text.replace("@BRANCH@", branch.replace('"', '\\"'))
