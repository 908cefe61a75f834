"""`kici.testing.run_step`: a step's own code with a recorded shell."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from kici import (
    CommandFailed,
    CommandInvalid,
    Ctx,
    Matrix,
    NoOutput,
    OtherEvent,
    Output,
    OutputInvalid,
    PushEvent,
    SecretNotFound,
    TagEvent,
    WaitTimeout,
    WorkflowCompleteEvent,
    job,
    step,
)
from kici.testing import Call, FakeShell, Reply, UnexpectedCommand, dispatch_event, event, needed, run_step


@dataclass
class Wheel:
    version: str
    path: str


@step(retry=2)
async def build_wheel(ctx: Ctx) -> Wheel:
    version = await ctx.sh("git describe --tags").text()
    await ctx.sh("uv build --out-dir {out}", out="my dist")
    return Wheel(version, f"dist/app-{version}.whl")


@step
def blocking(ctx: Ctx) -> list[str]:
    return ctx.sh("ls").lines().run()


# ── failures first ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_unexpected_command_is_an_error_that_names_it_and_lists_what_was_expected() -> None:
    with pytest.raises(UnexpectedCommand) as refused:
        run_step(build_wheel, sh=FakeShell({"git describe": "", re.compile("uv build"): ""}))
    assert "  git describe --tags\n" in str(refused.value)
    assert "  git describe\n  /uv build/" in str(refused.value)


def test_an_unexpected_command_is_told_although_the_step_has_caught_it() -> None:
    async def careless(ctx: Ctx) -> None:
        try:
            await ctx.sh("rm -rf build")
        except Exception:  # noqa: BLE001
            ctx.log.warning("never mind")

    with pytest.raises(UnexpectedCommand, match="rm -rf build"):
        run_step(careless)


def test_a_command_that_fails_raises_in_the_step_with_its_code_and_last_lines() -> None:
    with pytest.raises(CommandFailed) as failed:
        run_step(build_wheel, sh=FakeShell({"git describe --tags": Reply(stderr="fatal: no tags\n", exit_code=128)}))
    assert (failed.value.exit_code, failed.value.tail) == (128, "fatal: no tags")


def test_an_exception_is_raised_where_the_command_is_run() -> None:
    with pytest.raises(OSError, match="no disk"):
        run_step(build_wheel, sh=FakeShell({"git describe --tags": OSError("no disk")}))


def test_a_value_that_does_not_follow_its_annotation_is_refused() -> None:
    async def wrong(ctx: Ctx) -> Wheel:
        return Wheel(version=3, path="x")  # type: ignore[arg-type]

    with pytest.raises(OutputInvalid, match="version"):
        run_step(wrong)


def test_a_template_that_the_shell_would_misread_is_refused_as_on_an_agent() -> None:
    async def quoted(ctx: Ctx) -> None:
        await ctx.sh("echo '{name}'", name="x")

    with pytest.raises(CommandInvalid, match="single quotes"):
        run_step(quoted, sh=FakeShell(default=""))


def test_blocking_in_an_async_step_is_refused_as_on_an_agent() -> None:
    async def wrong(ctx: Ctx) -> None:
        ctx.sh("ls").run()

    with pytest.raises(RuntimeError, match="await"):
        run_step(wrong, sh=FakeShell(default=""))


def test_what_the_test_does_not_give_is_named() -> None:
    async def secret(ctx: Ctx) -> None:
        ctx.secrets["TOKEN"]

    async def output(ctx: Ctx) -> None:
        ctx.outputs(build_wheel)

    with pytest.raises(SecretNotFound, match=r"'TOKEN'.*it gives: OTHER"):
        run_step(secret, secrets={"OTHER": "x"})
    with pytest.raises(NoOutput, match="build_wheel"):
        run_step(output)


def test_an_output_that_the_step_could_not_have_returned_is_refused() -> None:
    async def uses(ctx: Ctx) -> str:
        return ctx.outputs(build_wheel).version

    with pytest.raises(OutputInvalid):
        run_step(uses, outputs={build_wheel: "1.0"})


# ── what a step does ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_async_step_gets_its_answers_and_its_value_is_typed() -> None:
    ran = run_step(build_wheel, sh=FakeShell({"git describe --tags": "v1.2\n", re.compile("uv build "): ""}))
    assert ran.value == Wheel("v1.2", "dist/app-v1.2.whl")
    assert ran.commands == ["git describe --tags", "uv build --out-dir 'my dist'"]


def test_a_sync_step_runs_in_a_thread_and_blocks() -> None:
    assert run_step(blocking, sh=FakeShell({"ls": "a\nb\n"})).value == ["a", "b"]


async def test_it_runs_beside_the_loop_of_an_async_test() -> None:
    assert run_step(blocking, sh=FakeShell({"ls": "a"})).value == ["a"]
    with pytest.raises(UnexpectedCommand):
        run_step(blocking)


def test_a_command_step_and_a_job_that_is_a_function_run_too() -> None:
    assert run_step(step("test", "pytest -q"), sh=FakeShell({"pytest -q": ""})).commands == ["pytest -q"]

    @job(runs_on="linux")
    async def hello(ctx: Ctx) -> str:
        return ctx.job.name

    assert run_step(hello).value == "hello"
    with pytest.raises(Exception, match="run one of them"):
        run_step(job("many", runs_on="linux", steps=["a", "b"]))


def test_answers_may_come_one_after_the_other_or_from_a_function(tmp_path: Path) -> None:
    def unpack(call: Call) -> str:
        (Path(call.cwd) / "made.txt").write_text("here")
        return ""

    async def tries(ctx: Ctx) -> str:
        seen = [await ctx.sh(["curl", "-f", "http://a b"]).ok() for _ in range(3)]
        await ctx.sh("tar x")
        return f"{seen} {Path('made.txt').read_text()}"

    shell = FakeShell({"curl -f 'http://a b'": [22, Reply(exit_code=22), ""], "tar x": unpack, "never": ""})
    assert run_step(tries, sh=shell, root=tmp_path).value == "[False, False, True] here"
    assert shell.unused == ["never"]


def test_json_check_input_cwd_and_env_are_as_the_step_says() -> None:
    async def many(ctx: Ctx) -> int:
        ctx.set_env("MODE", "fast")
        ctx.expose("TOKEN")
        found: dict[str, int] = await ctx.sh("api", cwd="sub", env={"X": "1"}, input="body").json(dict[str, int])
        return found["n"] + (await ctx.sh("bad", check=False)).exit_code

    ran = run_step(many, sh=FakeShell({"api": '{"n": 2}', "bad": 7}), secrets={"TOKEN": "s3cret"})
    assert ran.value == 9
    call = ran.calls[0]
    assert Path(call.cwd).name == "sub"
    assert call.input == b"body"
    assert {name: call.env[name] for name in ("MODE", "TOKEN", "X")} == {"MODE": "fast", "TOKEN": "s3cret", "X": "1"}
    assert ran.env["MODE"] == "fast"
    assert "TOKEN" not in ran.env


def test_facts_are_what_the_test_says() -> None:
    async def facts(ctx: Ctx) -> list[str]:
        return [ctx.matrix.python, ctx.inputs["level"], ctx.git.branch, ctx.environment, ctx.needs["lint"].status]

    ran = run_step(
        facts,
        event=dispatch_event(branch="dev"),
        inputs={"level": "high"},
        matrix={"python": "3.13"},
        environment="staging",
        needs={"lint": "failed"},
    )
    assert ran.value == ["3.13", "high", "dev", "staging", "failed"]


def test_outputs_of_others_are_given_by_object() -> None:
    build = job("build", runs_on="linux", steps=[build_wheel])

    async def uses(ctx: Ctx) -> list[str]:
        mine = ctx.outputs(build_wheel, job=build).version
        others = ctx.outputs_all(build_wheel)
        return [mine, *(one.value.version for one in others), ctx.needs[build][1].matrix.python]

    ran = run_step(
        uses,
        outputs={(build_wheel, build): Wheel("1", "a")},
        outputs_all={build_wheel: [Wheel("2", "b"), Output("x", "success", Matrix({}), Wheel("3", "c"))]},
        needs={build: [needed(), needed(matrix={"python": "3.13"})]},
    )
    assert ran.value == ["1", "2", "3", "3.13"]


def test_what_a_step_tells_can_be_looked_at(tmp_path: Path) -> None:
    async def tells(ctx: Ctx) -> None:
        ctx.log.info("built", size=3)
        ctx.annotate("warning", "long line", file="a.py", line=3)
        ctx.summary("# Done\n")
        ctx.mask("hidden")
        await ctx.set_secret_output("KEY", "value")
        await ctx.artifacts.upload("wheel", ["dist/*.whl"])
        (path,) = await ctx.artifacts.download("data", into="in")
        assert path == "in/a.txt"  # from the checkout, as on an agent
        await ctx.emit("released", {"text": Path(path).read_text()})
        async with ctx.cache("deps-1", "~/.cache/x", restore="deps-") as found:
            ctx.log.info(found.matched_key)
        with ctx.group("more"):
            ctx.add_path("bin")

    ran = run_step(tells, root=tmp_path, artifacts={"data": {"a.txt": "hello"}}, cached=["deps-0"])
    told = ran.told
    assert [(line.message, line.fields) for line in ran.log] == [("built", {"size": 3}), ("deps-0", {}), ("more", {})]
    assert [(one.level, one.message, one.file, one.line) for one in ran.annotations] == [
        ("warning", "long line", "a.py", 3)
    ]
    assert (ran.summary, told.masked, told.secret_outputs) == ("# Done\n", ["hidden"], {"KEY": "value"})
    assert told.uploaded == {"wheel": ("dist/*.whl",)}
    assert told.emitted == [("released", {"text": "hello"})]
    assert ran.env["PATH"].startswith(str(tmp_path / "bin"))


def test_waiting_takes_no_time_and_ends_as_it_would() -> None:
    async def waits(ctx: Ctx) -> int:
        seen: list[int | None] = [None, None, 5]
        return await ctx.wait_for(lambda: seen.pop(0))

    async def in_vain(ctx: Ctx) -> None:
        await ctx.wait_for(lambda: None, every="1s", timeout="3s")

    assert run_step(waits).value == 5
    with pytest.raises(WaitTimeout, match="4 times"):
        run_step(in_vain)


def test_a_member_that_tests_do_not_have_can_be_given() -> None:
    def uses(ctx: Ctx) -> str:
        return str(ctx.hosts)  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="extra"):
        run_step(uses)
    assert run_step(uses, extra={"hosts": "none"}).value == "none"


def test_cancelled_is_seen() -> None:
    async def looks(ctx: Ctx) -> str:
        return ctx.cancelled.reason if ctx.cancelled else ""

    assert run_step(looks, cancelled="superseded").value == "superseded"
    assert run_step(looks).value == ""


def test_a_step_that_the_end_of_a_workflow_starts_is_tried_with_that_event() -> None:
    def reads(ctx: Ctx) -> str:
        ended = ctx.event_as(WorkflowCompleteEvent)
        return f"{ended.workflow} {ended.status} {ended.commit}"

    ended = event("workflow_complete", workflow="ci", state="failed", commit="c1")
    assert run_step(reads, event=ended).value == "ci failed c1"


class Inputs(msgspec.Struct):
    replicas: int = 1


def test_events_and_inputs_are_typed_as_on_an_agent() -> None:
    def reads(ctx: Ctx) -> int:
        assert ctx.event_as(PushEvent).branch == "main"
        with pytest.raises(OtherEvent):
            ctx.event_as(TagEvent)
        return ctx.inputs_as(Inputs).replicas

    assert run_step(reads, inputs={"replicas": "3"}).value == 3
