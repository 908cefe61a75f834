from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kici.engine.lockfile import LockStep, Retry
from kici.wire.context import NeededJob

SH_IS_NOT_BASH = "bash" not in Path("/bin/sh").resolve().name

pytestmark = pytest.mark.parametrize("jobs", ["none", "bubblewrap"], indirect=True)


async def test_the_steps_of_a_job_run_in_order_and_see_what_the_others_returned(jobs: Any) -> None:
    ended = await jobs.run(
        """
        from dataclasses import dataclass

        @dataclass
        class Wheel:
            version: str
            size: int

        @step
        async def make(ctx: Ctx) -> Wheel:
            version = await ctx.sh("echo 1.2; echo to stderr >&2").text()
            return Wheel(version, 3)

        @step
        def use(ctx: Ctx) -> list[int]:
            wheel = ctx.outputs(make)
            assert type(wheel) is Wheel
            print("size", wheel.size, ctx.job.name, ctx.git.branch)
            ctx.sh("echo version {v}", v=wheel.version).run()
            return [wheel.size]

        build = job("build", runs_on="linux", steps=["echo first", make, use])
        ci = workflow("ci", jobs=[build])
        """,
        LockStep("echo first", "echo first"),
        "make",
        "use",
    )
    assert ended.status == "success", (ended, jobs.sink.text)
    assert ended.outputs == {"make": {"version": "1.2", "size": 3}, "use": [3]}
    assert bytes(jobs.sink.log[0]) == b"first\n"
    assert b"to stderr" in jobs.sink.log[1]
    assert bytes(jobs.sink.log[2]) == b"size 3 build main\nversion 1.2\n"
    assert jobs.sink.steps == [
        (0, 1, "started"), (0, 1, "success"), (1, 1, "started"), (1, 1, "success"), (2, 1, "started"), (2, 1, "success")
    ]  # fmt: skip


async def test_a_command_that_fails_ends_the_job_with_its_exit_code(jobs: Any) -> None:
    ended = await jobs.run(
        """
        build = job("build", runs_on="linux", steps=[step("a", "false | true; exit 3"), step("b", "echo never")])
        ci = workflow("ci", jobs=[build])
        """,
        LockStep("a", "false | true; exit 3"),
        LockStep("b", "echo never"),
    )
    assert ended.status == "failed"
    assert "exit code 1" in ended.error
    assert jobs.sink.last.exit_code == 1
    assert "never" not in jobs.sink.text


async def test_a_step_that_may_fail_does_not_fail_its_job(jobs: Any) -> None:
    ended = await jobs.run(
        """
        build = job("build", runs_on="linux", steps=[step("a", "exit 4", continue_on_error=True), step("b", "echo on")])
        ci = workflow("ci", jobs=[build])
        """,
        LockStep("a", "exit 4", continue_on_error=True),
        LockStep("b", "echo on"),
    )
    assert ended.status == "success"
    assert jobs.sink.ends == ["failed", "success"]


async def test_the_commands_of_a_step_start_in_its_directory_and_its_shell_and_a_command_may_say_otherwise(
    jobs: Any,
) -> None:
    ended = await jobs.run(
        """
        @step(working_directory="packages/app", shell="sh")
        async def look(ctx: Ctx) -> list[str]:
            await ctx.sh("mkdir -p below")
            there = [await ctx.sh("basename $PWD").text(), await ctx.sh("basename $PWD", cwd="below").text()]
            which = "echo ${BASH_VERSION:+bash}"
            return [*there, await ctx.sh(which).text(), await ctx.sh(which, shell="bash").text()]

        above = step("a", "basename $PWD", working_directory="packages")
        build = job("build", runs_on="linux", steps=["mkdir -p packages/app", above, look])
        ci = workflow("ci", jobs=[build])
        """,
        LockStep("mkdir -p packages/app", "mkdir -p packages/app"),
        LockStep("a", "basename $PWD", working_directory="packages"),
        LockStep("look", working_directory="packages/app", shell="sh"),
    )
    assert ended.status == "success", (ended, jobs.sink.text)
    assert bytes(jobs.sink.log[1]) == b"packages\n"
    assert ended.outputs["look"] == ["app", "below", "" if SH_IS_NOT_BASH else "bash", "bash"]


async def test_a_step_whose_directory_is_not_there_says_so(jobs: Any) -> None:
    ended = await jobs.run(
        """
        build = job("build", runs_on="linux", steps=[step("a", "true", working_directory="nowhere")])
        ci = workflow("ci", jobs=[build])
        """,
        LockStep("a", "true", working_directory="nowhere"),
    )
    assert ended.status == "failed"
    assert "nowhere does not exist" in ended.error


async def test_an_exception_shows_the_author_s_frames_only(jobs: Any) -> None:
    ended = await jobs.run(
        """
        @job(runs_on="linux")
        async def build(ctx: Ctx) -> None:
            await helper(ctx)

        async def helper(ctx: Ctx) -> None:
            raise ValueError("no such thing")

        ci = workflow("ci", jobs=[build])
        """
    )
    assert ended.status == "failed"
    assert "ValueError: no such thing" in ended.error
    assert 'File ".kici/workflows/ci.py", line 8, in helper' in jobs.sink.text
    assert "asyncio" not in jobs.sink.text
    assert "runner/" not in jobs.sink.text


async def test_a_workflow_that_raises_at_import_fails_its_job_with_the_traceback(jobs: Any) -> None:
    ended = await jobs.run("print('loading')\nraise RuntimeError('not today')\n")
    assert ended.status == "failed"
    assert "cannot be imported: RuntimeError: not today" in ended.error
    assert 'File ".kici/workflows/ci.py", line 3' in jobs.sink.text
    assert "loading" in jobs.sink.text
    assert "importlib" not in jobs.sink.text


async def test_a_module_that_is_not_what_was_locked_fails_its_job(jobs: Any) -> None:
    source = """
    build = job("build", runs_on="linux", steps=[step("a", "echo other")])
    ci = workflow("ci", jobs=[build])
    """
    ended = await jobs.run(source, LockStep("a", "echo locked"))
    assert "another command than in the lock file: run `kici compile`" in ended.error
    assert "other\n" not in jobs.sink.text


async def test_a_step_is_tried_again_after_a_failure(jobs: Any) -> None:
    ended = await jobs.run(
        """
        @step(retry=Retry(3, delay="1ms", when=lambda error: "again" in str(error)))
        def flaky(ctx: Ctx) -> int:
            tries = len(ctx.sh("echo x >> tries; cat tries").lines().run())
            if tries < 3:
                raise ValueError("again")
            return tries

        ci = workflow("ci", jobs=[job("build", runs_on="linux", steps=[flaky])])
        """,
        LockStep("flaky", retry=Retry(3, delay_ms=1)),
    )
    assert ended.status == "success"
    assert ended.outputs == {"flaky": 3}
    assert jobs.sink.ends == ["failed", "failed", "success"]
    assert [attempt for _, attempt, status in jobs.sink.steps if status == "started"] == [1, 2, 3]


async def test_what_does_not_follow_its_annotation_fails_the_step(jobs: Any) -> None:
    ended = await jobs.run(
        """
        @job(runs_on="linux")
        def build(ctx: Ctx) -> dict[str, int]:
            return {"a": "not a number"}

        ci = workflow("ci", jobs=[build])
        """
    )
    assert ended.status == "failed"
    assert "$" in ended.error
    assert ended.outputs == {}


async def test_the_environment_goes_on_from_step_to_step_and_exposed_secrets_do_not(jobs: Any) -> None:
    ended = await jobs.run(
        r"""
        @step
        async def first(ctx: Ctx) -> None:
            ctx.set_env("ONE", "1")
            ctx.expose("TOKEN")
            await ctx.sh("echo one $ONE token $TOKEN")
            await ctx.sh("printf 'TWO=2\nTEXT<<END\na\n b=c\nEND\nTOKEN=stolen\n' >> $KICI_ENV")
            await ctx.sh("mkdir bin; printf '#!/bin/sh\necho mine' > bin/mytool; chmod +x bin/mytool")
            await ctx.sh("echo bin >> $KICI_PATH; echo value=7 >> $KICI_OUTPUT")

        @step
        async def second(ctx: Ctx) -> None:
            await ctx.sh('echo "$ONE $TWO [$TEXT] ${TOKEN-unset}"; mytool')
            assert ctx.env["TWO"] == "2"
            print(ctx.outputs(first), repr(ctx.secrets), sep=" ")

        ci = workflow("ci", jobs=[job("build", runs_on="linux", steps=[first, second])])
        """,
        "first",
        "second",
        facts={"secrets": {"TOKEN": "hunter2"}},
    )
    assert ended.status == "success", jobs.sink.text
    assert "one 1 token hunter2" in jobs.sink.text
    assert "$KICI_ENV: TOKEN is the name of a secret" in jobs.sink.text
    assert bytes(jobs.sink.log[1]) == b"1 2 [a\n b=c] unset\nmine\n{'value': '7'} Secrets(TOKEN)\n"


async def test_all_that_a_step_writes_is_in_its_log(jobs: Any) -> None:
    ended = await jobs.run(
        r"""
        import os, subprocess, sys, threading, ctypes

        @step
        async def one(ctx: Ctx) -> None:
            print("by print")
            print("by stderr", file=sys.stderr)
            os.write(1, b"by descriptor\n")
            subprocess.run(["echo", "by a child"])
            ctypes.CDLL(None).puts(b"by C")
            thread = threading.Thread(target=print, args=("by a thread",))
            thread.start(); thread.join()
            ctx.log.info("by log", number=3)
            print("then without newline", end="")
            await ctx.sh("echo; echo last")

        @step
        def two(ctx: Ctx) -> None:
            os.write(2, b"second\n")

        ci = workflow("ci", jobs=[job("build", runs_on="linux", steps=[one, two])])
        """,
        "one",
        "two",
    )
    assert ended.status == "success"
    assert sorted(bytes(jobs.sink.log[0]).decode().splitlines()) == [
        "[info] by log number=3", "by C", "by a child", "by a thread", "by descriptor", "by print", "by stderr",
        "last", "then without newline",
    ]  # fmt: skip
    assert bytes(jobs.sink.log[1]) == b"second\n"


async def test_outputs_of_needed_jobs_come_as_their_annotation_says(jobs: Any) -> None:
    ended = await jobs.run(
        """
        from dataclasses import dataclass

        @dataclass
        class Made:
            name: str

        @job(runs_on="linux")
        def make(ctx: Ctx) -> Made: ...

        @job(runs_on="linux", matrix={"n": ["1", "2"]})
        def fan(ctx: Ctx) -> int: ...

        @job(runs_on="linux", needs=[make, fan.when("always")])
        async def build(ctx: Ctx) -> str:
            assert ctx.needs[make].status == "success"
            made = ctx.outputs(make)
            assert isinstance(made, Made)
            values = [one.value for one in ctx.outputs_all(fan) if one.status == "success"]
            return f"{made.name} {values} {[one.matrix.n for one in ctx.outputs_all(fan)]}"

        ci = workflow("ci", jobs=[make, fan, build])
        """,
        facts={
            "needs": (
                NeededJob("make", "make", "success", outputs={"make": {"name": "x"}}),
                NeededJob("fan (1)", "fan", "success", {"n": "1"}, {"fan": 11}),
                NeededJob("fan (2)", "fan", "failed", {"n": "2"}),
            )
        },
    )
    assert ended.outputs == {"build": "x [11] ['1', '2']"}, jobs.sink.text


async def test_artifacts_go_to_the_host_and_come_back(jobs: Any) -> None:
    ended = await jobs.run(
        """
        @job(runs_on="linux")
        async def build(ctx: Ctx) -> list[str]:
            await ctx.sh("mkdir -p dist/sub; echo a > dist/a.whl; echo b > dist/sub/b; chmod +x dist/a.whl")
            await ctx.artifacts.upload("wheels", ["dist/*.whl", "dist/sub"])
            return await ctx.artifacts.download("wheels", into="back")

        ci = workflow("ci", jobs=[build])
        """
    )
    assert ended.outputs == {"build": ["back/dist/a.whl", "back/dist/sub/b"]}, (ended, jobs.sink.text)
    assert (jobs.root / "src/back/dist/a.whl").stat().st_mode & 0o111
    assert jobs.sink.artifacts.keys() == {"wheels"}


async def test_an_artifact_that_the_host_cannot_give_fails_the_step(jobs: Any) -> None:
    ended = await jobs.run(
        """
        @job(runs_on="linux")
        def build(ctx: Ctx) -> None:
            ctx.artifacts.download("missing").run()

        ci = workflow("ci", jobs=[build])
        """
    )
    assert "artifact 'missing' was not fetched: an internal error of the host" in ended.error


async def test_an_artifact_outside_the_checkout_is_refused(jobs: Any) -> None:
    ended = await jobs.run(
        """
        @job(runs_on="linux")
        def build(ctx: Ctx) -> None:
            ctx.artifacts.upload("etc", "../home").run()

        ci = workflow("ci", jobs=[build])
        """
    )
    assert "outside the checkout" in ended.error
