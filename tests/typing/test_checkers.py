"""mypy --strict and pyright accept what authors write, and refuse what would fail. One run of each for all of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src"
HEAD = """
from kici import Ctx, Retry, changed, concurrency, job, jobs, parallel, pr, push, step, workflow

@step
async def number(ctx: Ctx) -> int:
    return 1

a = job("a", runs_on="linux", steps=[number])
"""
REFUSED = {
    "output_has_the_steps_type": """
        @step
        async def other(ctx: Ctx) -> str:
            return ctx.outputs(number)  # refused
    """,
    "outputs_of_many_are_a_list": """
        @step
        async def other(ctx: Ctx) -> int:
            return ctx.outputs_all(number)  # refused
    """,
    "a_command_is_awaited": """
        @step
        async def other(ctx: Ctx) -> str:
            return ctx.sh("true").text()  # refused
    """,
    "a_job_says_where_it_runs": 'job("b", steps=[number])  # refused',
    "an_option_is_misspelt": 'job("b", runs_on="linux", steps=[number], need=[a])  # refused',
    "an_option_comes_later": 'job("b", runs_on="linux", steps=[number], services="x")  # refused',
    "a_rule_is_called": 'job("b", runs_on="linux", steps=[number], rules=changed)  # refused',
    "a_cache_is_no_text": 'job("b", runs_on="linux", steps=[number], cache="uv")  # refused',
    "a_hook_takes_ctx": 'job("b", runs_on="linux", steps=[number], cleanup=lambda: None)  # refused',
    "a_group_stands_in_steps": 'job("b", runs_on="linux", steps=[parallel(parallel(number))])  # refused',
    "made_jobs_are_jobs": """
        @jobs("many")  # refused
        def many(ctx: Ctx) -> list[str]:
            return ["a"]
    """,
    "an_annotation_has_a_level": """
        @step
        async def other(ctx: Ctx) -> None:
            ctx.annotate("info", "x")  # refused
    """,
    "a_resource_is_misspelt": 'job("b", runs_on="linux", steps=[number], resources={"cpu": 1})  # refused',
    "a_sandbox_is_misspelt": 'job("b", runs_on="linux", steps=[number], sandbox="isolate")  # refused',
    "a_permission_is_misspelt": 'workflow("ci", jobs=[a], permissions={"caches": "wirte"})  # refused',
    "a_matrix_has_no_floats": 'job("b", runs_on="linux", steps=[number], matrix={"python": [3.10]})  # refused',
    "a_step_is_no_job": 'workflow("ci", on=push(), jobs=[number])  # refused',
    "a_trigger_is_called": 'workflow("ci", on=push, jobs=[a])  # refused',
    "an_event_is_misspelt": 'pr(events="openned")  # refused',
    "a_condition_is_misspelt": 'a.when("alway")  # refused',
    "a_step_takes_ctx": """
        def greedy(ctx: Ctx, more: int) -> None: ...
        step(greedy)  # refused
    """,
    "ctx_has_no_such_thing": """
        @step
        async def other(ctx: Ctx) -> None:
            ctx.shell("true")  # refused
    """,
    "definitions_are_frozen": 'a.name = "b"  # refused',
    "a_name_comes_later": "from kici import fixture  # refused",
    "backoff_is_one_of_two": 'Retry(2, backoff="linear")  # refused',
    "pending_is_one_of_two": 'concurrency("x", pending="latest")  # refused',
}


CHECKERS = ("mypy", "pyright")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[int, str]]]:
    """Checker → file → line → first error."""
    directory = tmp_path_factory.mktemp("typing")
    for name, text in REFUSED.items():
        (directory / f"{name}.py").write_text(HEAD + dedent(text).strip() + "\n")
    (directory / "accepted.py").write_bytes((HERE / "accepted.py").read_bytes())
    return {"mypy": _mypy(directory), "pyright": _pyright(directory)}


def _mypy(directory: Path) -> dict[str, dict[int, str]]:
    done = _run(
        directory,
        *("-m", "mypy", "--strict", "--config-file=", "--no-error-summary", "--hide-error-context"),
        *("--cache-dir", str(directory / "cache"), "--explicit-package-bases", "--python-version=3.11"),
        *sorted(path.name for path in directory.glob("*.py")),
    )
    found: dict[str, dict[int, str]] = {}
    for file, line, message in re.findall(r"^(.+?):(\d+): error: (.*)$", done, re.MULTILINE):
        found.setdefault(Path(file).stem, {}).setdefault(int(line), message)
    return found


def _pyright(directory: Path) -> dict[str, dict[int, str]]:
    settings = {"include": ["."], "typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": [str(SOURCES)]}
    (directory / "pyrightconfig.json").write_text(json.dumps(settings))
    done = _run(directory, "-m", "basedpyright", "-p", ".", "--pythonpath", sys.executable, "--outputjson")
    found: dict[str, dict[int, str]] = {}
    for one in json.loads(done)["generalDiagnostics"]:
        if one["severity"] == "error":
            line = one["range"]["start"]["line"] + 1
            found.setdefault(Path(one["file"]).stem, {}).setdefault(line, one["message"])
    return found


def _run(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, "MYPYPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stderr + done.stdout
    return done.stdout


@pytest.mark.timeout(360)
@pytest.mark.parametrize("checker", CHECKERS)
def test_what_authors_write_is_accepted(said: dict[str, dict[str, dict[int, str]]], checker: str) -> None:
    assert said[checker].get("accepted", {}) == {}
    assert said[checker].keys() <= REFUSED.keys()


@pytest.mark.timeout(360)
@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_fail_is_refused_at_its_line(
    said: dict[str, dict[str, dict[int, str]]], name: str, checker: str
) -> None:
    lines = (HEAD + dedent(REFUSED[name]).strip()).splitlines()
    wanted = [number for number, line in enumerate(lines, 1) if line.endswith("# refused")]
    assert set(wanted) <= said[checker].get(name, {}).keys()
    if checker == "mypy":
        assert sorted(said[checker][name]) == wanted
