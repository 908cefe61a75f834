"""Dynamic options and generators on `kici run local`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.test_run_local import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "repo").mkdir()
    (tmp_path / "tools").mkdir()
    return Repository(tmp_path / "repo", tmp_path / "tools")


def write(repository: Repository, source: str) -> None:
    repository.workflow("from kici import jobs, workflow\n" + source)
    repository.commit()


def jobs(document: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {
        job["name"]: (job["status"], job.get("error") or "") for one in document["workflows"] for job in one["jobs"]
    }


def test_a_matrix_over_directories(repository: Repository) -> None:
    for name in ("api", "web"):
        repository.write(f"packages/{name}/NAME", name)
    write(
        repository,
        """
async def directories(ctx):
    return {"package": await ctx.sh("ls packages").lines()}

@job(runs_on="linux", matrix=directories, env=lambda ctx: {"KIND": ctx.event.type + "{x}"},
     environment=lambda ctx: "pr-{7}", concurrency=lambda ctx: "one")
async def test(ctx: Ctx) -> str:
    assert ctx.environment == "pr-{7}"
    return await ctx.sh("cat packages/{p}/NAME; echo -n $KIND", p=ctx.matrix.package).text()

@job(runs_on="linux", needs=[test])
def report(ctx: Ctx) -> None:
    found = {one.name: one.value for one in ctx.outputs_all(test)}
    assert found == {"test (api)": "apimanual{x}", "test (web)": "webmanual{x}"}, found
    assert [one.matrix.package for one in ctx.needs[test]] == ["api", "web"]
    assert list(ctx.needs) == ["test"]

ci = workflow("ci", on=manual(), jobs=[test, report])
""",
    )
    document = repository.document("ci")
    assert jobs(document) == {
        "init: test": ("success", ""),
        "test (api)": ("success", ""),
        "test (web)": ("success", ""),
        "report": ("success", ""),
    }, repository.run("ci").stdout


GENERATED = """
import asyncio

@job(runs_on="linux")
def plan(ctx: Ctx) -> dict[str, int]:
    return {"one": 1, "two": 2}

def shard(name, number):
    @step
    def count(ctx: Ctx) -> int:
        return number * 10

    @step
    def double(ctx: Ctx) -> int:
        return ctx.outputs(count) * 2

    return job(name, runs_on="linux", steps=["echo " + name, count, double], env={"WHO": "{job}"})

@jobs("shards", needs=[plan])
async def shards(ctx):
    assert "README" in await ctx.sh("ls").lines()
    for name, number in ctx.outputs(plan).items():
        yield shard(name, number)
    yield job("collect", runs_on="linux", needs=["one", "two"], matrix=lambda ctx: ["x", "y"],
              steps=[step("sum", lambda ctx: ctx.outputs("double", job="one") + ctx.outputs("double", job="two"))])

@job(runs_on="linux", needs=[shards.when("always")])
def report(ctx: Ctx) -> None:
    found = {one.name: one.value for one in ctx.outputs_all(shards)}
    assert found == {
        "one": {"count": 10, "double": 20}, "two": {"count": 20, "double": 40},
        "collect (x)": {"sum": 60}, "collect (y)": {"sum": 60},
    }, found
    assert [(one.name, one.status) for one in ctx.needs[shards]][:2] == [("one", "success"), ("two", "success")]
    assert [one.returned for one in ctx.outputs_all("double", job=shards)][:2] == [20, 40]

ci = workflow("ci", on=manual(), jobs=[plan, shards, report])
"""


def test_jobs_that_are_made_of_what_another_job_returned(repository: Repository) -> None:
    repository.write("README", "x")
    write(repository, GENERATED)
    document = repository.document("ci")
    assert jobs(document) == {
        "plan": ("success", ""),
        "init: shards": ("success", ""),
        "one": ("success", ""),
        "two": ("success", ""),
        "collect (x)": ("success", ""),
        "collect (y)": ("success", ""),
        "report": ("success", ""),
    }, repository.run("ci").stdout


def test_one_job_alone_brings_what_its_generated_jobs_need(repository: Repository) -> None:
    write(
        repository,
        """
@job(runs_on="linux")
def lint(ctx: Ctx) -> None: ...

@job(runs_on="linux")
def other(ctx: Ctx) -> None: ...

@jobs("shards")
def shards(ctx):
    return [job("one", runs_on="linux", needs=[lint], steps=["true"])]

ci = workflow("ci", on=manual(), jobs=[lint, other, shards])
""",
    )
    assert repository.jobs("ci", "--job", "shards") == {
        "lint": "success",
        "init: shards": "success",
        "one": "success",
    }


def test_a_generator_that_makes_nothing_lets_its_dependants_start(repository: Repository) -> None:
    write(
        repository,
        """
@jobs("none")
def none(ctx):
    return []

@job(runs_on="linux", needs=[none])
def after(ctx: Ctx) -> None:
    assert ctx.outputs_all(none) == []
    assert len(ctx.needs[none]) == 0

ci = workflow("ci", on=manual(), jobs=[none, after])
""",
    )
    assert repository.jobs("ci") == {"init: none": "success", "after": "success"}


BROKEN = [
    ("raise ValueError('no idea')", "step 'evaluate' failed: ValueError: no idea"),
    ("return [job(f'j{n}', runs_on='linux', steps=['true']) for n in range(101)]", "made more than 100 jobs"),
    ("return None", "returned None: yield jobs, or return a list of them"),
    ("return ['x']", "made 'x', which is no job"),
    ("return [job('x', runs_on='linux', steps=[])]", "it has no steps"),
    ("import sys; sys.exit(3)", "its function called sys.exit"),
    ("import time; time.sleep(30)", "its function took longer than 1 s"),
    ("return [job('x', runs_on='linux', steps=['true'], matrix=lambda ctx: 3)]", "matrix is 3"),
]


@pytest.mark.parametrize(("body", "sentence"), BROKEN)
def test_a_generator_that_fails_fails_its_init_job_and_nothing_waits(
    repository: Repository, body: str, sentence: str
) -> None:
    write(
        repository,
        f"""
@jobs("shards", timeout="1s")
def shards(ctx):
    {body}

@job(runs_on="linux", needs=[shards])
def after(ctx: Ctx) -> None: ...

ci = workflow("ci", on=manual(), jobs=[shards, after])
""",
    )
    found = jobs(repository.document("ci"))
    assert found["init: shards"][0] == "failed"
    assert sentence in found["init: shards"][1]
    assert found["shards"] == ("skipped", "init: shards ended as failed (needed success)")
    assert found["after"] == ("skipped", "shards ended as skipped (needed success)")


def test_jobs_that_cannot_be_in_the_run_fail_in_place_of_the_generator(repository: Repository) -> None:
    write(
        repository,
        """
@jobs("shards")
def shards(ctx):
    yield job("after", runs_on="linux", steps=["true"])
    yield job("x", runs_on="linux", needs=["nope"], steps=["true"])

@job(runs_on="linux", needs=[shards.when("always")])
def after(ctx: Ctx) -> None: ...

ci = workflow("ci", on=manual(), jobs=[shards, after])
""",
    )
    found = jobs(repository.document("ci"))
    assert found["init: shards"] == ("success", "")
    assert found["shards"] == (
        "failed",
        "generator 'shards': job 'after': the run has one of that name already; job 'x' needs 'nope', which is not"
        " among the workflow's jobs",
    )
    assert found["after"][0] == "success"


@pytest.mark.parametrize(
    ("again", "status", "sentence"),
    [
        ("[]", "drift_dropped", "generator 'shards' does not make job 'one' any more"),
        ("[job('one', runs_on='linux', steps=['false'])]", "failed", "makes job 'one' with other steps than before"),
        ("1 / 0", "failed", "generator 'shards' failed: ZeroDivisionError: division by zero"),
    ],
)
def test_a_generator_that_changes_its_mind(repository: Repository, again: str, status: str, sentence: str) -> None:
    write(
        repository,
        f"""
@jobs("shards")
def shards(ctx):
    if ctx.job.name.startswith("init: "):
        return [job("one", runs_on="linux", steps=["true", "exit 3"])]
    return {again}

ci = workflow("ci", on=manual(), jobs=[shards])
""",
    )
    found = jobs(repository.document("ci"))
    assert found["one"][0] == status
    assert sentence in found["one"][1]


def test_what_a_matrix_gave_can_be_too_much(repository: Repository) -> None:
    write(
        repository,
        """
@job(runs_on="linux", matrix=lambda ctx: list(range(257)))
def test(ctx: Ctx) -> None: ...

ci = workflow("ci", on=manual(), jobs=[test])
""",
    )
    found = jobs(repository.document("ci"))
    assert found["test"] == (
        "failed",
        "job 'test' has a matrix that fails: the matrix has 257 combinations; the limit is 256",
    )


def test_the_log_tells_what_was_decided(repository: Repository) -> None:
    write(
        repository,
        """
@job(runs_on="linux", matrix=lambda ctx: {"x": [1, True, "a"]})
def test(ctx: Ctx) -> None: ...

ci = workflow("ci", on=manual(), jobs=[test])
""",
    )
    shown = repository.run("ci").stdout
    assert re.search(r"job 'test': matrix is x: 1, true, a", shown), shown


def test_a_generator_sees_the_same_environment_whenever_it_is_asked(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the machine's, and not that of the job that it has made: else it would make another one the second time."""
    monkeypatch.setenv("ONLY_OF_THE_MACHINE", "secret")
    write(
        repository,
        """
import os

@step
def look(ctx: Ctx) -> str:
    return f"{os.environ['OWN']} {os.environ['PLACE']} {os.environ['KICI_JOB']}"

@jobs("made")
async def made(ctx):
    seen = [os.environ.get(name, "none") for name in ("ONLY_OF_THE_MACHINE", "OWN", "PLACE", "KICI_JOB")]
    seen.append(await ctx.sh("echo -n ${OWN-none}").text())
    name = "-".join(seen).replace(": ", "_")
    yield job(name, runs_on="linux", steps=[look], env={"OWN": "x", "PLACE": "there"})

@job(runs_on="linux", needs=[made])
def report(ctx: Ctx) -> None:
    assert [one.value["look"].split(" ", 2)[:2] for one in ctx.outputs_all(made)] == [["x", "there"]]

ci = workflow("ci", on=manual(), jobs=[made, report], env={"PLACE": "{branch}"})
""",
    )
    ended = jobs(repository.document("ci"))
    assert ended == {
        "init: made": ("success", ""),
        "none-none-main-init_made-none": ("success", ""),
        "report": ("success", ""),
    }
