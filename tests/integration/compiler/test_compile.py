from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from kici.compiler.errors import CompileError
from kici.engine import lockfile
from kici.engine.lockfile import LockFile

ONE = """from kici import job, manual, workflow
hello = job("hello", runs_on="linux", steps=["echo hello"])
ci = workflow("ci", on=manual(), jobs=[hello])
"""
SPECIFIED = """from dataclasses import dataclass
from kici import Ctx, job, pr, push, step, workflow

@job(runs_on="linux")
async def lint(ctx: Ctx) -> None:
    await ctx.sh("ruff check .")

@dataclass
class Wheel:
    version: str
    path: str

@step(timeout="5m", retry=2)
async def build_wheel(ctx: Ctx) -> Wheel:
    version = await ctx.sh("git describe --tags").text()
    await ctx.sh("uv build --out-dir dist")
    return Wheel(version, f"dist/app-{version}.whl")

@step
async def upload(ctx: Ctx) -> None:
    wheel = ctx.outputs(build_wheel)
    await ctx.artifacts.upload(f"wheel-{ctx.matrix.python}", [wheel.path])

build = job("build", runs_on="linux", needs=[lint], matrix={"python": ["3.11", "3.13"]},
            steps=["uv sync --locked", build_wheel, upload])

@job(runs_on="linux", needs=[build], environment="production",
     concurrency="deploy-{branch}", timeout="20m")
async def deploy(ctx: Ctx) -> None:
    token = ctx.secrets["DEPLOY_TOKEN"]
    await ctx.sh("./deploy.sh --ref {ref}", ref=ctx.git.ref, env={"TOKEN": token})

ci = workflow("ci", on=[push(branches="main"), pr(paths=["src/**", "!**/*.md"])],
              jobs=[lint, build, deploy])
"""


def good(repo: Any) -> LockFile:
    compiled = repo.compile()
    assert compiled.problems == ()
    assert compiled.lock is not None
    assert lockfile.decode(compiled.data) == compiled.lock
    lock: LockFile = compiled.lock
    return lock


def hashes(repo: Any) -> dict[str, str]:
    return {workflow.name: workflow.content_hash for workflow in good(repo).workflows}


def test_the_specified_example_becomes_its_lock_entry(repo: Any) -> None:
    repo.write("workflows/ci.py", SPECIFIED)
    (ci,) = good(repo).workflows
    assert (ci.name, ci.export, ci.source.file) == ("ci", "ci", ".kici/workflows/ci.py")
    assert [job.name for job in ci.jobs] == ["lint", "build", "deploy"]
    lint, build, deploy = ci.jobs
    assert lint.runs_on == ("linux",)
    assert build.matrix == {"python": ("3.11", "3.13")}
    assert [step.name for step in build.steps] == ["uv sync --locked", "build_wheel", "upload"]
    assert build.steps[1].timeout_ms == 300_000
    assert build.steps[1].retry is not None
    assert build.steps[1].retry.attempts == 2
    assert "version" in str(build.steps[1].outputs)
    assert deploy.timeout_ms == 1_200_000
    assert deploy.environment == "production"
    assert deploy.location == lockfile.SourceLocation(".kici/workflows/ci.py", 27)
    assert [need.job for need in deploy.needs] == ["build"]


def test_two_compiles_of_two_clones_give_the_same_bytes(make_repo: Callable[[], Any]) -> None:
    first, second = make_repo(), make_repo()
    for repo in (first, second):
        repo.write("workflows/ci.py", SPECIFIED)
        repo.write("lib/helper.py", "X = 1\n")
    second.git("add", ".")
    assert first.compile().data == second.compile().data == second.compile().data


def test_crlf_gives_the_same_bytes_as_lf(make_repo: Callable[[], Any]) -> None:
    unix, dos = make_repo(), make_repo()
    unix.write("workflows/ci.py", SPECIFIED)
    dos.write("workflows/ci.py", SPECIFIED.replace("\n", "\r\n"))
    assert unix.compile().data == dos.compile().data != b""


def test_a_byte_order_mark_does_not_stop_a_compile(repo: Any) -> None:
    repo.write("workflows/ci.py", b"\xef\xbb\xbf" + ONE.encode())
    assert [workflow.name for workflow in good(repo).workflows] == ["ci"]


def test_a_module_in_another_encoding_is_refused(repo: Any) -> None:
    repo.write("workflows/ci.py", b"# coding: latin-1\n# caf\xe9\n" + ONE.encode())
    (problem,) = repo.problems()
    assert problem.startswith(".kici/workflows/ci.py: ")
    assert "UTF-8" in problem


def test_names_in_any_script_are_kept(repo: Any) -> None:
    repo.write("workflows/größe.py", ONE.replace('"ci"', '"Prüfung 検査"').replace('"hello"', '"größe"'))
    (workflow,) = good(repo).workflows
    assert workflow.name == "Prüfung 検査"
    assert workflow.jobs[0].name == "größe"
    assert workflow.source.file == ".kici/workflows/größe.py"


def test_what_modules_print_is_in_nobodys_way(repo: Any) -> None:
    repo.write("workflows/ci.py", "import os\nprint('{}')\nos.write(1, b'[]\\n')\nprint(input) or None\n" + ONE)
    good(repo)


def test_a_flood_of_output_is_thrown_away(repo: Any) -> None:
    repo.write("workflows/ci.py", "for _ in range(400): print('x' * 100_000)\n" + ONE)
    good(repo)


def test_a_process_that_a_module_leaves_behind_does_not_hold_up_the_compile(repo: Any) -> None:
    source = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    repo.write("workflows/ci.py", source + ONE)
    good(repo)


# ── which files ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_lock_lists_what_git_would_commit(repo: Any) -> None:
    (repo.root / ".gitignore").write_text("*.log\n")
    for path in ("lib/a.py", "lib/b.log", ".secrets", "kici.lock.json", "data/x.bin", "lib/__pycache__/a.pyc"):
        repo.write(path, "x\n")
    repo.write("workflows/ci.py", ONE)
    repo.git("add", ".kici/lib/a.py")
    files = good(repo).files
    assert list(files) == ["data/x.bin", "lib/a.py", "workflows/ci.py"]
    assert files["lib/a.py"] == hashlib.sha256(b"x\n").hexdigest()


def test_secrets_are_not_listed_even_if_they_are_tracked(repo: Any) -> None:
    repo.write("workflows/ci.py", ONE)
    repo.write(".secrets", "A=b\n")
    repo.git("add", "-f", ".kici/.secrets")
    assert list(good(repo).files) == ["workflows/ci.py"]


def test_a_tracked_file_that_is_deleted_is_not_listed(repo: Any) -> None:
    repo.write("workflows/ci.py", ONE)
    repo.write("old.txt", "x")
    repo.git("add", ".")
    (repo.root / ".kici" / "old.txt").unlink()
    assert list(good(repo).files) == ["workflows/ci.py"]


def test_a_symbolic_link_is_refused(repo: Any) -> None:
    repo.write("workflows/ci.py", ONE)
    (repo.root / ".kici" / "link.py").symlink_to("workflows/ci.py")
    assert repo.problems() == [".kici/link.py: is a symbolic link: put the file itself there"]


def test_an_import_of_an_ignored_file_is_refused(repo: Any) -> None:
    (repo.root / ".gitignore").write_text("generated.py\n")
    repo.write("lib/generated.py", "X = 1\n")
    repo.write("workflows/ci.py", "from lib.generated import X\n" + ONE)
    (problem,) = repo.problems()
    assert problem.startswith(".kici/lib/generated.py: ")
    assert "ignore" in problem


# ── helpers and hashes ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_hash_of_a_workflow_covers_what_it_imports_and_nothing_else(repo: Any) -> None:
    repo.write("lib/shared.py", "from . import deeper\n")
    repo.write("lib/deeper.py", "X = 1\n")
    repo.write("workflows/_common.py", "Y = 1\n")
    repo.write("workflows/ci.py", "from lib import shared\nfrom ._common import Y\n" + ONE)
    repo.write("workflows/other/nested.py", ONE.replace('"ci"', '"nested"'))
    before = hashes(repo)
    assert list(before) == ["ci", "nested"]

    repo.write("lib/deeper.py", "X = 2\n")
    deeper = hashes(repo)
    assert deeper["ci"] != before["ci"]
    assert deeper["nested"] == before["nested"]

    repo.write("workflows/_common.py", "Y = 2\n")
    assert hashes(repo)["ci"] != deeper["ci"]


def test_modules_that_begin_with_an_underscore_are_helpers(repo: Any) -> None:
    repo.write("workflows/_common.py", ONE)
    repo.write("workflows/ci.py", "from workflows._common import hello\n" + ONE.replace("hello = job", "hi = job"))
    assert len(good(repo).workflows) == 1


def test_a_workflow_that_two_modules_hold_is_listed_once_where_it_is_written(repo: Any) -> None:
    repo.write("workflows/a.py", "from .b import ci\n")
    repo.write("workflows/b.py", ONE)
    (workflow,) = good(repo).workflows
    assert workflow.source.file == ".kici/workflows/b.py"


def test_a_repository_without_workflows_says_how_to_begin(repo: Any) -> None:
    with pytest.raises(CompileError, match="kici init"):
        repo.compile()


def test_modules_without_a_workflow_are_refused(repo: Any) -> None:
    repo.write("workflows/ci.py", "x = 1\n")
    with pytest.raises(CompileError, match="holds a workflow"):
        repo.compile()


def test_an_f_string_in_sh_is_a_warning_and_with_strict_an_error(repo: Any) -> None:
    repo.write(
        "workflows/ci.py",
        "from kici import Ctx, job, manual, workflow\n"
        '@job(runs_on="linux")\n'
        "async def hello(ctx: Ctx) -> None:\n"
        '    await ctx.sh(f"echo {ctx.git.branch}")\n'
        'ci = workflow("ci", on=manual(), jobs=[hello])\n',
    )
    compiled = repo.compile()
    assert compiled.lock is not None
    assert [(warning.file, warning.line) for warning in compiled.warnings] == [(".kici/workflows/ci.py", 4)]
    assert repo.compile(strict=True).problems == compiled.warnings
