"""The operator's hooks: what they are told, what they may break, and that no job has a say in them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from kici.agent import hooks
from kici.agent.errors import PreparationFailed, SettingsInvalid
from kici.agent.hooks import Hooks
from kici.agent.sandbox.choose import choose
from kici.engine.events import Event, EventType
from kici.wire.agent import Cancel, Checkout, Dispatch, JobAccepted, StepStatusChanged
from kici.wire.context import JobContext
from tests.support import agent_process
from tests.support.agent_orchestrator import Orchestrator
from tests.support.agent_process import AgentProcess
from tests.support.kici_repository import KiciRepository
from tests.support.web import Web

JOB = "0f0f0f0f-0000-0000-0000-000000000001"
SANDBOXED = choose("auto").sandbox.name == "bubblewrap"
needs_sandbox = pytest.mark.skipif(not SANDBOXED, reason="bubblewrap does not work here")


@pytest.fixture
def place(base: Path) -> Path:
    directory = base / "hooks"
    directory.mkdir(mode=0o755)
    return directory


def write(place: Path, name: str, script: str, mode: int = 0o755) -> Path:
    path = place / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(mode)
    return path


def loaded(place: Path | None, *, timeout_s: float = 20, sandboxed: bool = True) -> Hooks:
    return Hooks(place, work_dir=Path("/work-dir"), timeout_s=timeout_s, sandboxed=sandboxed)


class Said(list[str]):
    def __call__(self, line: str) -> None:
        self.append(line)


# ── one hook ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_hook_has_the_documented_environment_and_nothing_else(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KICI_AGENT_TOKEN", "kat_secret")
    write(place, "before-job", "env | sort; pwd")
    said = Said()
    await loaded(place).before(hooks.BEFORE_JOB, {"KICI_SHA": "abc", "KICI_REF": "a\nb; rm -rf /"}, said)
    names = {line.partition("=")[0] for line in said[1:-1] if "=" in line}
    assert names - {"PATH", "HOME", "LANG", "LC_ALL", "TZ", "PWD", "_", "SHLVL", "OLDPWD"} == {
        "KICI_HOOK",
        "KICI_SHA",
        "KICI_REF",
    }
    assert said[-1] == "/"


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("echo why >&2; exit 3", "the operator's hook before-job failed with exit code 3"),
        ("kill -9 $$", "the operator's hook before-job was killed by signal 9"),
        ("trap '' TERM; while :; do sleep 1; done", "the operator's hook before-job took longer than 0.3 s"),
    ],
)
async def test_a_hook_that_fails_is_named_with_what_happened(place: Path, script: str, sentence: str) -> None:
    write(place, "before-job", script)
    with pytest.raises(PreparationFailed) as failed:
        await loaded(place, timeout_s=0.3 if "trap" in script else 20).before(hooks.BEFORE_JOB, {}, Said())
    assert str(failed.value).startswith(sentence)


async def test_what_a_hook_has_started_neither_holds_it_up_nor_stays(place: Path, base: Path) -> None:
    write(place, "before-job", f"(echo $$ > {base}/started; exec sleep 1000) & echo done")
    said = Said()
    async with asyncio.timeout(20):
        await loaded(place).before(hooks.BEFORE_JOB, {}, said)
    assert "done" in said
    async with asyncio.timeout(20):  # killed it is already
        while [one for one in Path("/proc").iterdir() if _command(one) == b"sleep\x001000\x00" and _group(one, base)]:
            await asyncio.sleep(0.02)


async def test_much_output_is_cut_and_the_hook_not_held_up(place: Path) -> None:
    write(place, "before-job", "yes 0123456789 | head -c 10000000")
    said = Said()
    await loaded(place).before(hooks.BEFORE_JOB, {}, said)
    assert sum(map(len, said)) < 2 * hooks.MAX_OUTPUT_BYTES
    assert "the rest is left out" in said[-1]


@pytest.mark.parametrize("problem", ["directory", "parent", "file", "owner", "link", "mode"])
def test_hooks_that_others_could_write_are_refused_at_the_start(place: Path, base: Path, problem: str) -> None:
    hook = write(place, "after-job", "true")
    match problem:
        case "directory":
            place.chmod(0o775)
        case "parent":
            base.chmod(0o777)
        case "file":
            hook.chmod(0o757)
        case "owner":
            if os.geteuid():
                pytest.skip("only root can give a file away")
            os.chown(hook, 60_998, 60_998)
        case "link":
            hook.unlink()
            hook.symlink_to("/bin/true")
        case "mode":
            hook.chmod(0o644)
    with pytest.raises(SettingsInvalid, match="KICI_HOOKS_DIR cannot be used"):
        loaded(place)


async def test_a_hook_that_was_made_writable_later_is_not_run(place: Path, base: Path) -> None:
    hook = write(place, "before-job", f"touch {base}/ran")
    loaded_hooks = loaded(place)
    hook.chmod(0o777)
    with pytest.raises(PreparationFailed, match=r"was not run: .* can be written by others"):
        await loaded_hooks.before(hooks.BEFORE_JOB, {}, Said())
    assert not (base / "ran").exists()


def test_a_directory_below_the_work_directory_or_beside_jobs_without_a_sandbox_is_refused(place: Path) -> None:
    with pytest.raises(SettingsInvalid, match="below the work directory"):
        Hooks(place, work_dir=place.parent, timeout_s=1, sandboxed=True)
    with pytest.raises(SettingsInvalid, match="there is no sandbox"):
        loaded(place, sandboxed=False)
    with pytest.raises(SettingsInvalid, match="absolute path of a directory"):
        loaded(Path("hooks"))


# ── an agent with hooks ──────────────────────────────────────────────────────────────────────────────────────────────


class Bench:
    def __init__(self, base: Path, place: Path, web: Web, orchestrator: Orchestrator) -> None:
        self.base, self.place, self.web, self.orchestrator = base, place, web, orchestrator

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[AgentProcess]:
        env = {"KICI_SANDBOX": "true", "KICI_HOOKS_DIR": str(self.place)}
        async with agent_process.running(self.base, self.orchestrator.url, env) as agent:
            yield agent

    async def send(self, *commands: str) -> None:
        repository = KiciRepository(self.web.repositories / "repo", {"build": commands})
        event = Event(EventType.PUSH, branch="main", sha=repository.sha, repo="me/repo")
        context = JobContext("run-1", JOB, 1, "ci", "build", "build", event)
        self.web.contexts[JOB] = msgspec.msgpack.encode(context)
        await self.orchestrator.send(
            Dispatch(
                *("run-1", JOB, 1, "ci", "build", "build"),
                checkout=Checkout(f"{self.web.url}/git/repo/.git", repository.sha, repository.sha),
                lock_sha256=repository.lock_sha256,
                job_token="kjt_" + "fedcba9876543210" * 4,
                context=context,
            )
        )

    def record(self, name: str) -> None:
        facts = "$KICI_HOOK $KICI_RUN_ID $KICI_JOB_ID $KICI_REPO $KICI_REF $KICI_TRUST $KICI_OUTCOME"
        files = "$(ls $KICI_WORKSPACE/src | tr '\\n' ' ')"
        write(self.place, name, f'echo "{facts} [{files}]" >> {self.base}/record; echo "said by {name}"')

    async def recorded(self, name: str) -> str:
        async with asyncio.timeout(30):
            while True:
                lines = (self.base / "record").read_text().splitlines() if (self.base / "record").exists() else []
                found = next((line for line in lines if line.startswith(f"{name} ")), None)
                if found:
                    return found
                await asyncio.sleep(0.02)


@pytest.fixture
def bench(base: Path, place: Path, web: Web, orchestrator: Orchestrator) -> Bench:
    return Bench(base, place, web, orchestrator)


@needs_sandbox
async def test_hooks_run_around_a_job_in_their_order_and_the_job_sees_none_of_them(bench: Bench) -> None:
    for name in hooks.NAMES:
        bench.record(name)
    async with bench.agent() as agent:
        await bench.send(f"test -e {bench.place} && echo visible || echo hidden")
        end = await bench.orchestrator.end(JOB)
        assert end.status == "success", agent.log()
        about = f"run-1 {JOB} me/repo refs/heads/main trusted"
        assert await bench.recorded("after-job") == f"after-job {about} success [README.md ]"
        assert (bench.base / "record").read_text().splitlines()[:2] == [
            f"before-checkout {about}  []",
            f"before-job {about}  [README.md ]",
        ]
        preparation = await bench.orchestrator.log(JOB, -1, "said by before-job")
        assert "said by before-checkout" in preparation
        assert "hidden" in await bench.orchestrator.log(JOB, 0)


@needs_sandbox
async def test_a_before_hook_that_fails_ends_the_job_before_user_code(bench: Bench) -> None:
    write(bench.place, "before-checkout", "echo no room; exit 4")
    bench.record("after-job")
    async with bench.agent():
        await bench.send("echo ran")
        end = await bench.orchestrator.end(JOB)
        assert (end.status, end.failed_before_user_code) == ("failed", True)
        assert end.error == "the operator's hook before-checkout failed with exit code 4"
        assert "no room" in await bench.orchestrator.log(JOB, -1)
        assert not bench.orchestrator.bodies(StepStatusChanged, step_index=0)
        assert " failed [" in await bench.recorded("after-job")


@needs_sandbox
async def test_after_a_cancel_by_force_the_hook_runs_when_no_process_of_the_job_is_left(bench: Bench) -> None:
    marker = "314159265"
    write(bench.place, "after-job", f"grep -lz '{marker[:-1]}[5]' /proc/[0-9]*/cmdline | wc -l > {bench.base}/left")
    async with bench.agent() as agent:
        await bench.send(f"trap '' TERM; sleep {marker} & setsid sleep {marker} & wait")
        await bench.orchestrator.body(StepStatusChanged, step_index=0, status="running")
        await bench.orchestrator.send(Cancel(JOB, 1, "enough", force=True))
        assert (await bench.orchestrator.end(JOB)).status == "cancelled"
        async with asyncio.timeout(30):
            while not ((bench.base / "left").exists() and (bench.base / "left").read_text()):
                await asyncio.sleep(0.02)
        assert (bench.base / "left").read_text().strip() == "0", agent.log()


@needs_sandbox
async def test_an_after_hook_that_fails_is_told_in_the_agents_log_and_the_job_stays_as_it_ended(bench: Bench) -> None:
    write(bench.place, "after-job", "echo complaint; exit 5")
    async with bench.agent() as agent:
        await bench.send("true")
        assert (await bench.orchestrator.end(JOB)).status == "success"
        await bench.orchestrator.body(JobAccepted)
        agent.send(signal.SIGTERM)
        assert await agent.ended() == 0
        assert "failed with exit code 5" in agent.log()
        assert "complaint" in agent.log()


def _command(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def _group(entry: Path, base: Path) -> bool:
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()[2] == (base / "started").read_text().strip()
    except OSError:
        return False
