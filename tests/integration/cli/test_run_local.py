"""`kici run local` as a program, on real repositories."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from kici.agent.sandbox import cgroups
from kici.agent.sandbox.contract import Limits, SandboxUnavailable
from tests.support import example

SOURCE = Path(__file__).parents[3] / "src"


class Repository:
    def __init__(self, root: Path, tools: Path) -> None:
        self.root = root
        self._tools = tools
        self.git("init", "-q", "-b", "main")
        self.write(".gitignore", ".kici/.secrets\nignored\n__pycache__/\n")

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        done = subprocess.run(["git", *identity, *arguments], cwd=self.root, check=True, capture_output=True, text=True)
        return done.stdout

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def workflow(self, source: str) -> None:
        self.write(
            ".kici/workflows/ci.py", "from kici import Ctx, job, manual, pr, push, step, workflow\n" + dedent(source)
        )

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "Change")

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self._tools}:{os.environ['PATH']}",
            "HOME": str(self.root.parent / "home"),
            "TMPDIR": str(self.root.parent / "tmp"),
            "PYTHONPATH": str(SOURCE),
            "LANG": "C.UTF-8",
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "kici.cli.main", "run", "local", *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), cwd=self.root, env=self.environment, capture_output=True, text=True, timeout=60
        )

    def document(self, *arguments: str) -> dict[str, Any]:
        ran = self.run("--json", *arguments)
        assert ran.stdout, ran.stderr
        return dict(json.loads(ran.stdout))

    def jobs(self, *arguments: str) -> dict[str, str]:
        found = self.document(*arguments)
        return {job["name"]: job["status"] for one in found["workflows"] for job in one["jobs"]}

    @property
    def left_over(self) -> list[str]:
        return sorted(path.name for path in (self.root.parent / "tmp").iterdir())


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    for name in ("app", "home", "tmp"):
        (tmp_path / name).mkdir()
    found = Repository(tmp_path / "app", example.TOOLS)
    yield found
    assert found.left_over == []


def test_the_example_of_the_documentation_runs(repository: Repository) -> None:
    repository.write(".kici/workflows/ci.py", example.WORKFLOW)
    repository.write("deploy.sh", '#!/bin/sh\necho "deploy $* with $TOKEN"\n', mode=0o755)
    repository.write(".kici/.secrets", "[production]\nDEPLOY_TOKEN=hunter2-secret\n")
    repository.commit()
    repository.git("tag", "v1.2")
    ran = repository.run("ci")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    assert "lint         │ ruff check ." in lines
    assert "build (3.11) │ uv sync --locked" in lines
    assert "build (3.13) │ uv build --out-dir dist" in lines
    assert "deploy       │ deploy --ref refs/heads/main with ***" in lines
    assert "hunter2" not in ran.stdout + ran.stderr
    assert "committed lock file differs" in ran.stderr
    tree = [line.split("  ")[0] for line in lines[-13:]]
    assert tree[0] == "✓ ci"
    assert "├─ ✓ build (3.11)" in tree
    assert "└─ ✓ deploy" in tree
    assert repository.git("status", "--short") == ""

    document = repository.document("ci", "--job", "build")
    jobs = {job["name"]: job for job in document["workflows"][0]["jobs"]}
    assert list(jobs) == ["lint", "build (3.11)", "build (3.13)"]
    assert jobs["build (3.13)"]["outputs"]["build_wheel"] == {"version": "v1.2", "path": "dist/app-v1.2.whl"}
    assert jobs["build (3.13)"]["matrixValues"] == {"python": "3.13"}


def test_a_failing_job_fails_the_run_and_skips_what_needs_it(repository: Repository) -> None:
    repository.workflow("""
        a = job("a", runs_on="linux", steps=["exit 3", "echo never"])
        b = job("b", runs_on="linux", needs=[a], steps=["echo b"])
        c = job("c", runs_on="linux", needs=[a.when("on_failure")], steps=["echo c"])
        d = job("d", runs_on="linux", needs=[b.when("always")], steps=[step("x", "exit 1", continue_on_error=True)])
        ci = workflow("ci", on=push(), jobs=[a, b, c, d])
    """)
    ran = repository.run()
    assert ran.returncode == 1
    assert "│ never" not in ran.stdout
    assert "Failed jobs: a" in ran.stdout
    assert "exit code 3" in ran.stdout
    assert "(allowed to fail)" in ran.stdout
    assert repository.jobs() == {"a": "failed", "b": "skipped", "c": "success", "d": "success"}


def test_an_event_that_starts_nothing_is_exit_code_3_and_says_why(repository: Repository) -> None:
    repository.workflow("""
        a = job("a", runs_on="linux", steps=["true"])
        ci = workflow("ci", on=push(branches="main"), jobs=[a])
    """)
    ran = repository.run("--ref", "topic")
    assert (ran.returncode, ran.stdout) == (3, "")
    assert "ci: No triggers matched" in ran.stderr
    assert repository.run("ci", "--ref", "topic").returncode == 3


def test_what_is_not_there_is_wrong_usage_and_answered_with_the_nearest_name(repository: Repository) -> None:
    repository.workflow("""
        a = job("build", runs_on="linux", steps=["true"])
        ci = workflow("check", on=push(), jobs=[a])
    """)
    ran = repository.run("chekc")
    assert ran.returncode == 2
    assert "did you mean 'check'" in ran.stderr
    ran = repository.run("--job", "biuld")
    assert ran.returncode == 2
    assert "did you mean 'build'" in ran.stderr
    ran = repository.run("--base", "nowhere", "check")
    assert ran.returncode == 2
    assert "'nowhere' is no branch, tag or commit here" in ran.stderr


def test_path_filters_see_what_differs_from_where_the_branch_left(repository: Repository) -> None:
    repository.workflow("""
        a = job("a", runs_on="linux", steps=["echo ran"])
        src = workflow("src", on=push(paths="src/**"), jobs=[a])
        docs = workflow("docs", on=push(paths="docs/**"), jobs=[a])
    """)
    repository.commit()
    repository.git("checkout", "-q", "-b", "topic")
    repository.write("docs/a.md", "new\n")
    ran = repository.run("--json")
    assert [one["name"] for one in json.loads(ran.stdout)["workflows"]] == ["docs"]
    assert "1 file changed since" in ran.stderr
    assert "(where it left main)" in ran.stderr
    assert repository.run("--changed", "README").returncode == 3


def test_a_quiet_run_says_only_how_it_ended(repository: Repository) -> None:
    repository.workflow("""
        a = job("a", runs_on="linux", steps=["echo noise"])
        ci = workflow("ci", on=push(), jobs=[a])
    """)
    ran = repository.run("--quiet")
    assert ran.returncode == 0
    assert len(ran.stdout.splitlines()) == 3
    assert "├" not in ran.stdout
    assert "noise\n" not in ran.stdout.replace("echo noise", "")


def test_a_secret_of_the_command_line_wins_and_is_hidden(repository: Repository) -> None:
    repository.write(".kici/.secrets", "TOKEN=from-file\n[prod]\nTOKEN=from-prod\n")
    repository.workflow("""
        @job(runs_on="linux", environment="prod")
        async def a(ctx: Ctx) -> None:
            print("token", ctx.secrets["TOKEN"], len(ctx.secrets["TOKEN"]))
        ci = workflow("ci", on=push(), jobs=[a])
    """)
    ran = repository.run("--secret", "TOKEN=given-here")
    assert "token *** 10" in ran.stdout
    assert "given-here" not in ran.stdout + ran.stderr
    ran = repository.run("--secret", "MISSING")
    assert ran.returncode == 2
    assert "--secret: 'MISSING' is not set here" in ran.stderr


def test_junit_has_a_suite_for_each_workflow_and_a_case_for_each_job_and_no_secret(repository: Repository) -> None:
    repository.write(".kici/.secrets", "TOKEN=s3cret-value\n")
    repository.workflow("""
        good = job("good", runs_on="linux", matrix={"n": ["1", "<2>"]}, steps=["true"])
        @job(runs_on="linux")
        async def bad(ctx: Ctx) -> None:
            raise ValueError("no \\x07 " + ctx.secrets["TOKEN"] + " & more")
        late = job("late", runs_on="linux", needs=[bad], steps=["true"])
        ci = workflow("ci", on=push(), jobs=[good, bad, late])
    """)
    from xml.etree import ElementTree

    assert repository.run("--junit", "out/report.xml").returncode == 1
    text = (repository.root / "out/report.xml").read_text()
    assert "s3cret-value" not in text
    root = ElementTree.fromstring(text)
    assert (root.tag, root.get("name"), root.get("tests"), root.get("failures"), root.get("skipped")) == (
        "testsuites",
        "kici-local",
        "4",
        "1",
        "1",
    )
    (suite,) = root
    cases = {case.get("name"): case for case in suite}
    assert suite.get("name") == "ci"
    assert cases.keys() == {"good (1)", "good (<2>)", "bad", "late"}
    assert len(cases["good (1)"]) == 0
    (failure,) = cases["bad"]
    assert failure.tag == "failure"
    assert "& more" in (failure.get("message") or "")
    assert "bad: failed" in (failure.text or "")
    assert [one.tag for one in cases["late"]] == ["skipped"]
    assert all(len((case.get("time") or "").partition(".")[2]) == 3 for case in suite)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--input", "x"], "--input: 'x' is no input: write NAME=VALUE"),
        (["--env", "NOT_SET_ANYWHERE"], "--env: 'NOT_SET_ANYWHERE' is not set here"),
        (["--sandbox", "--in-place"], "exclude each other"),
        (["--event", "moon"], "moon"),
    ],
)
def test_wrong_usage_is_exit_code_2(repository: Repository, arguments: list[str], complaint: str) -> None:
    repository.workflow("ci = workflow('ci', on=push(), jobs=[job('a', runs_on='linux', steps=['true'])])")
    ran = repository.run(*arguments)
    assert ran.returncode == 2
    assert complaint in ran.stderr


def test_workflows_that_do_not_compile_are_told_with_their_lines(repository: Repository) -> None:
    repository.workflow("raise RuntimeError('not today')\n")
    ran = repository.run()
    assert ran.returncode == 1
    assert ".kici/workflows/ci.py:2" in ran.stderr
    assert "not today" in ran.stderr


def test_a_named_workflow_runs_whatever_starts_it(repository: Repository) -> None:
    repository.workflow("""
        @job(runs_on="linux")
        def a(ctx: Ctx) -> None:
            print("event", ctx.event.type, dict(ctx.inputs), ctx.run.is_local)
        ci = workflow("ci", on=manual(), jobs=[a])
    """)
    ran = repository.run("ci", "--input", "level=3")
    assert ran.returncode == 0, ran.stderr
    assert "event manual {'level': '3'} True" in ran.stdout


def test_the_working_tree_runs_as_it_is_in_a_copy(repository: Repository) -> None:
    repository.write("tracked", "old\n")
    repository.write("deleted", "x\n")
    repository.workflow("""
        a = job("a", runs_on="linux", steps=["git status --short | sort; cat tracked new; ls", "echo more > made"])
        ci = workflow("ci", on=push(), jobs=[a])
    """)
    repository.commit()
    repository.write("tracked", "changed\n")
    repository.write("new", "untracked\n")
    repository.write("ignored", "secret\n")
    repository.write(".kici/.secrets", "A=hunter2\n")
    (repository.root / "deleted").unlink()
    ran = repository.run()
    logged = [line.partition("│ ")[2] for line in ran.stdout.splitlines() if "│" in line]
    assert logged[:3] == [" D deleted", " M tracked", "?? new"], ran.stdout + ran.stderr
    assert logged[3:] == ["changed", "untracked", "new", "tracked"]
    assert not (repository.root / "made").exists()


def test_in_place_it_runs_in_the_tree_itself(repository: Repository) -> None:
    repository.workflow("ci = workflow('ci', on=push(), jobs=[job('a', runs_on='linux', steps=['echo x > made'])])")
    assert repository.run("--in-place").returncode == 0
    assert (repository.root / "made").read_text() == "x\n"


def test_a_tree_without_git_runs_too(repository: Repository) -> None:
    repository.workflow("ci = workflow('ci', on=push(), jobs=[job('a', runs_on='linux', steps=['cat data/file'])])")
    repository.write("data/file", "here\n")
    shutil.rmtree(repository.root / ".git")
    ran = repository.run("ci")
    assert ran.returncode == 0, ran.stderr
    assert "a │ here" in ran.stdout


def test_many_files_are_copied(repository: Repository) -> None:
    for number in range(400):
        repository.write(f"data/{number % 7}/file {number}", str(number))
    (repository.root / "link").symlink_to("data/1/file 1")
    repository.workflow("""
        a = job("a", runs_on="linux", steps=["find data -type f | wc -l; cat link"])
        ci = workflow("ci", on=push(), jobs=[a])
    """)
    ran = repository.run()
    assert "a │ 400" in ran.stdout, ran.stderr
    assert "a │ 1" in ran.stdout


def test_two_workflows_of_one_event_may_give_their_artifacts_the_same_name(repository: Repository) -> None:
    repository.workflow(
        """
        @job(runs_on="linux")
        async def make(ctx: Ctx) -> None:
            await ctx.sh("echo {name} > file", name=ctx.workflow.name)
            await ctx.artifacts.upload("made", "file")
        @job(runs_on="linux", needs=[make])
        async def use(ctx: Ctx) -> None:
            await ctx.artifacts.download("made")
            await ctx.sh("grep -x {name} file", name=ctx.workflow.name)
        one = workflow("one", on=push(), jobs=[make, use])
        two = workflow("two", on=push(), jobs=[make, use])
        """
    )
    ran = repository.run("--event", "push")
    assert ran.returncode == 0, ran.stdout


def test_artifacts_and_outputs_go_from_job_to_job(repository: Repository) -> None:
    repository.workflow("""
        @job(runs_on="linux")
        async def make(ctx: Ctx) -> list[int]:
            await ctx.sh("echo made > file")
            await ctx.artifacts.upload("made", "file")
            return [1, 2]

        @job(runs_on="linux", needs=[make])
        async def use(ctx: Ctx) -> None:
            print(await ctx.artifacts.download("made"), sum(ctx.outputs(make)), open("file").read())

        @job(runs_on="linux", needs=[use])
        async def miss(ctx: Ctx) -> None:
            await ctx.artifacts.download("nothing")

        ci = workflow("ci", on=push(), jobs=[make, use, miss])
    """)
    ran = repository.run()
    assert "use  │ ['file'] 3 made" in ran.stdout, ran.stdout + ran.stderr
    assert "no job of this run has uploaded an artifact 'nothing'" in ran.stdout


def test_in_a_sandbox_the_same_workflow_runs_without_the_host(repository: Repository, tmp_path: Path) -> None:
    repository.write("file", "here\n")
    repository.workflow(f"""
        a = job("a", runs_on="linux", steps=[
            "git log --oneline | wc -l; cat file; echo x > made; ls {tmp_path} || echo gone; pwd; echo $HOME"])
        ci = workflow("ci", on=push(), jobs=[a])
    """)
    repository.commit()
    ran = repository.run("--sandbox")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    logged = [line.partition("│ ")[2] for line in ran.stdout.splitlines() if "│" in line]
    assert [logged[0], logged[1], *logged[-3:]] == ["1", "here", "gone", "/work/src", "/work/home"]


def test_the_permissions_of_a_workflow_count_here_too(repository: Repository) -> None:
    repository.workflow("""
        @job(runs_on="linux")
        async def sends(ctx: Ctx) -> None:
            from pathlib import Path
            Path("out").write_text("x")
            await ctx.artifacts.upload("out", "out")

        @job(runs_on="linux")
        async def emits(ctx: Ctx) -> None:
            await ctx.emit("built", {})

        ci = workflow("ci", on=push(), jobs=[sends, emits], permissions={"artifacts": "write"})
    """)
    document = repository.document()
    sends, emits = document["workflows"][0]["jobs"]
    assert (sends["status"], emits["status"]) == ("success", "failed")
    assert (
        "the workflow 'ci' gives its jobs no permission to emit events: permissions={'events': 'write'} does"
        in emits["error"]
    )


def test_a_sandbox_that_a_job_asks_for_is_had_where_it_can_be_and_else_told(repository: Repository) -> None:
    repository.workflow("""
        kept = job("kept", runs_on="linux", sandbox="isolated", steps=["pwd"])
        image = job("image", runs_on="linux", sandbox="image-build", steps=["echo I am $(id -un)"])
        boxed = job("boxed", runs_on="linux", sandbox="container", steps=["pwd"])
        plain = job("plain", runs_on="linux", sandbox="none", steps=["pwd"])
        ci = workflow("ci", on=push(), jobs=[kept, image, boxed, plain])
    """)
    ran = repository.run()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("here its steps run as you: --sandbox keeps them in one") == 3
    ran = repository.run("--sandbox")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "I am root" in ran.stdout
    assert ran.stdout.count("the job asks for sandbox") == 1
    assert "a local run has no image for it" in ran.stdout


def test_a_job_has_its_own_limits_here_too_and_a_request_that_nobody_can_meet_fails_it(repository: Repository) -> None:
    try:
        cgroups.enforceable(Limits(memory_bytes=64 * 1024**2))
    except SandboxUnavailable as error:
        if os.environ.get("CI") and os.geteuid() == 0:
            raise
        pytest.skip(str(error))
    hog = f"{sys.executable} -I -c 'x = bytearray(600 << 20)'"
    repository.workflow(f"""
        a = job("a", runs_on="linux", steps=[{hog!r}], resources={{"memory": "96m"}})
        b = job("b", runs_on="linux", steps=["echo ran"], resources={{"requests": {{"memory": "1000000g"}}}})
        ci = workflow("ci", on=push(), jobs=[a, b])
    """)
    found = repository.document()
    a, b = found["workflows"][0]["jobs"]
    assert (a["status"], b["status"]) == ("failed", "failed")
    assert "the job ran out of memory and a process was killed (limit 96 MiB" in a["error"]
    assert b["error"].startswith("the job requests 1000000 GiB of memory, and this machine has ")


def test_the_timeout_of_the_workflow_ends_the_run(repository: Repository) -> None:
    repository.workflow("""
        a = job("a", runs_on="linux", steps=["sleep 1000"], grace_period="100ms")
        b = job("b", runs_on="linux", needs=[a], steps=["true"])
        ci = workflow("ci", on=push(), jobs=[a, b], timeout="500ms")
    """)
    assert repository.jobs() == {"a": "cancelled", "b": "cancelled"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_cancels_its_jobs_and_leaves_nothing(repository: Repository, number: int) -> None:
    repository.workflow("""
        a = job("a", runs_on="linux", steps=[
            "trap 'echo asked; exit 0' TERM; echo pid $$; while :; do sleep 0.02; done"])
        ci = workflow("ci", on=push(), jobs=[a])
    """)
    with subprocess.Popen(
        repository.command(), cwd=repository.root, env=repository.environment, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout
        line = next(line for line in program.stdout if "│ pid" in line)
        program.send_signal(number)
        rest = program.stdout.read()
        assert program.wait(30) == 1
    assert "a │ asked" in rest
    assert "⊘ a  cancelled" in rest
    assert not Path(f"/proc/{line.split()[-1]}").exists()


def test_a_failed_combination_halts_the_others_of_its_fan_out(repository: Repository) -> None:
    repository.workflow(
        """
        a = job("a", runs_on="linux", matrix={"n": ["1", "2", "3"]}, max_parallel=2, fail_fast=True,
                checkout=False, steps=["test {n} = 2 || exec sleep 60".replace("{n}", "$N"), "exit 1"],
                env={"N": "{matrix.n}"})
        ci = workflow("ci", on=push(), jobs=[a])
        """
    )
    repository.commit()
    jobs = {job["name"]: job for job in repository.document("-j", "3")["workflows"][0]["jobs"]}
    reason = "fan-out halted by fail_fast: a (2) failed"
    assert jobs["a (2)"]["status"] == "failed"
    assert (jobs["a (1)"]["status"], jobs["a (1)"]["error"]) == ("cancelled", reason)
    assert (jobs["a (3)"]["status"], jobs["a (3)"]["error"]) == ("skipped", reason)


def test_no_more_of_a_fan_out_run_at_once_than_may(repository: Repository, tmp_path: Path) -> None:
    repository.workflow(
        f"""
        a = job("a", runs_on="linux", matrix={{"n": ["1", "2", "3"]}}, max_parallel=1, checkout=False,
                steps=["mkdir {tmp_path}/alone && rmdir {tmp_path}/alone"])
        ci = workflow("ci", on=push(), jobs=[a])
        """
    )
    repository.commit()
    assert set(repository.jobs("-j", "3").values()) == {"success"}


def test_the_timeout_of_a_job_fails_it(repository: Repository) -> None:
    repository.workflow(
        """
        a = job("a", runs_on="linux", checkout=False, steps=["exec sleep 60"], timeout="200ms")
        ci = workflow("ci", on=push(), jobs=[a])
        """
    )
    repository.commit()
    (job,) = repository.document()["workflows"][0]["jobs"]
    assert (job["status"], job["error"]) == ("failed", "job_timeout: the job ran longer than its timeout of 0.2 s")
