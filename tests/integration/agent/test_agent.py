"""The agent as a process: real git, real runner, real signals; only the orchestrator is played by the test."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from kici.agent.sandbox import cgroups, podman
from kici.agent.sandbox.contract import Limits, SandboxUnavailable
from kici.agent.settings import load
from kici.engine.events import Event, EventType
from kici.engine.lockfile import LockAmount, LockResources, LockSandbox
from kici.wire.agent import (
    Ack,
    AgentFrame,
    AttemptRef,
    Cancel,
    Checkout,
    Dispatch,
    Goodbye,
    JobAccepted,
    JobRejected,
    JobStatusChanged,
    LogChunk,
    StepStatusChanged,
)
from kici.wire.close_codes import CloseCode
from kici.wire.context import JobContext
from tests.support import agent_process, container_image
from tests.support.agent_orchestrator import Orchestrator
from tests.support.agent_process import AgentProcess
from tests.support.kici_repository import KiciRepository
from tests.support.services import until
from tests.support.web import Web

JOB = "0f0f0f0f-0000-0000-0000-000000000001"
OTHER = "0f0f0f0f-0000-0000-0000-000000000002"


class Bench:
    """An orchestrator that the test plays, a repository, and how to start an agent beside them."""

    def __init__(self, base: Path, web: Web, orchestrator: Orchestrator) -> None:
        self.base = base
        self.web = web
        self.orchestrator = orchestrator
        self.gate = base / "gate"
        self.mark = base / "mark"

    def repository(self, *commands: str, **options: Any) -> KiciRepository:
        return KiciRepository(self.base / "repositories" / "repo", {"build": commands}, **options)

    @asynccontextmanager
    async def agent(self, **env: str) -> AsyncIterator[AgentProcess]:
        async with agent_process.running(self.base, self.orchestrator.url, env) as started:
            yield started

    def dispatch(
        self,
        repository: KiciRepository,
        job_id: str = JOB,
        attempt: int = 1,
        *,
        secrets: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        lock_sha256: str = "",
        workflow_sha: str = "",
        kill_after_silence_s: float | None = None,
        timeout_ms: int | None = None,
        inline: bool = True,
    ) -> Dispatch:
        context = JobContext(
            run_id="run-1",
            job_id=job_id,
            attempt=attempt,
            workflow="ci",
            job="build",
            name="build",
            event=Event(EventType.PUSH, branch="main", sha=repository.sha, repo="me/repo"),
            secrets=dict(secrets or {}),
            env=dict(env or {}),
        )
        self.web.contexts[job_id] = msgspec.msgpack.encode(context)
        return Dispatch(
            run_id="run-1",
            job_id=job_id,
            attempt=attempt,
            workflow="ci",
            job="build",
            name="build",
            checkout=Checkout(f"{self.web.url}/git/repo/.git", repository.sha, workflow_sha or repository.sha),
            lock_sha256=lock_sha256 or repository.lock_sha256,
            job_token="kjt_" + "fedcba9876543210" * 4,
            context=context if inline else None,
            kill_after_silence_s=kill_after_silence_s,
            timeout_ms=timeout_ms,
        )

    def wait_for_gate(self) -> str:
        """A command that ends once `gate` is there, and leaves `mark` when it starts."""
        return f"echo started; touch {self.mark}; until [ -e {self.gate} ]; do sleep 0.05; done; echo opened"


@pytest.fixture
def bench(base: Path, web: Web, orchestrator: Orchestrator) -> Bench:
    return Bench(base, web, orchestrator)


def without(kind: type) -> Callable[[AgentFrame], Ack | None]:
    """Acknowledges all but these."""
    return lambda frame: None if isinstance(frame.body, kind) else Ack((frame.seq,))


def steps(bench: Bench, status: str) -> Sequence[int]:
    return [body.step_index for body in bench.orchestrator.bodies(StepStatusChanged, status=status)]


async def settled(bench: Bench) -> None:
    """Everything the agent does at once after what we sent has happened: it has answered two more heartbeats."""
    count = len(bench.orchestrator.heartbeats)
    await bench.orchestrator.until(lambda: len(bench.orchestrator.heartbeats) >= count + 2, "two heartbeats")


# ── a job that goes well ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_job_without_a_checkout_has_its_workflow_and_an_empty_directory(bench: Bench) -> None:
    repository = bench.repository("ls -A; echo listed", checkout=False)
    async with bench.agent() as agent:
        await bench.orchestrator.send(bench.dispatch(repository))
        end = await bench.orchestrator.end(JOB)
        assert (end.status, end.error) == ("success", ""), agent.log()
    assert (await bench.orchestrator.log(JOB, 0)).split() == ["listed"]


@pytest.fixture
def control_groups() -> None:
    try:
        cgroups.enforceable(Limits(memory_bytes=64 * 1024**2, cpus=1))
    except SandboxUnavailable as error:
        if os.environ.get("CI") and os.geteuid() == 0:
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    container_image.skip_without_podman()
    with tempfile.TemporaryDirectory(prefix="kici-test-") as directory, container_image.made(Path(directory)) as name:
        yield name


async def test_a_job_runs_in_a_container_and_its_failure_is_explained(bench: Bench, image: str) -> None:
    repository = bench.repository("cat README.md; pwd; id -un", "kill -9 $$")
    wanted = {"KICI_SANDBOX": "container", "KICI_SANDBOX_IMAGE": image, "KICI_JOB_MEMORY": "256MiB"}
    podman_s = {name: os.environ[name] for name in ("CONTAINERS_CONF", "HOME") if name in os.environ}
    async with bench.agent(**wanted, **podman_s) as agent:
        await bench.orchestrator.send(bench.dispatch(repository))
        end = await bench.orchestrator.end(JOB)
        log = await bench.orchestrator.log(JOB, 0)
        agent.send(signal.SIGTERM)
        assert await agent.ended() == 0, agent.log()
    assert (end.status, end.signal) == ("failed", "SIGKILL"), agent.log()
    assert "killed by SIGKILL" in end.error
    assert log.split() == ["hello", "/work/src", "kici"]
    known = load({"KICI_ORCHESTRATOR_URL": "ws://host", "KICI_WORK_DIR": str(bench.base / "work")} | wanted)
    assert known.container
    assert podman.sweep(known.container.agent) == []


MIB = 1024**2


def needing(memory: int | None = None, cpus: int | None = None, *, limits: LockAmount | None = None) -> dict[str, Any]:
    amount = LockAmount(cpus, memory)
    return {"options": {"resources": LockResources(amount, limits or amount)}}


HOG = f"echo up; exec {sys.executable} -I -c 'x = bytearray(600 << 20)'"


@pytest.mark.parametrize("sandbox", ["none", "bubblewrap"])
async def test_a_job_s_own_memory_limit_holds_and_its_failure_names_it(
    bench: Bench, sandbox: str, control_groups: None
) -> None:
    repository = bench.repository(HOG, **needing(96 * MIB))
    async with bench.agent(KICI_SANDBOX=sandbox, KICI_JOB_MEMORY="1GiB") as agent:
        await bench.orchestrator.send(bench.dispatch(repository))
        end = await bench.orchestrator.end(JOB)
        assert (end.status, end.reason) == ("failed", "out_of_memory"), agent.log()
    assert "the job ran out of memory and a process was killed (limit 96 MiB, peak " in end.error


async def test_a_job_that_requests_more_than_the_agent_gives_fails_before_its_first_step(bench: Bench) -> None:
    repository = bench.repository("echo ran", **needing(4096 * MIB))
    async with bench.agent(KICI_SANDBOX="none", KICI_JOB_MEMORY="1GiB"):
        await bench.orchestrator.send(bench.dispatch(repository))
        end = await bench.orchestrator.end(JOB)
    assert (end.status, end.reason, end.failed_before_user_code) == ("failed", "preparation", True)
    assert end.error == (
        "the job requests 4 GiB of memory, and this agent gives a job 1 GiB: raise KICI_JOB_MEMORY there, or choose a"
        " larger agent by labels in runs_on"
    )


async def test_a_limit_above_the_agent_s_is_lowered_and_the_log_says_so(bench: Bench, control_groups: None) -> None:
    wanted = needing(128 * MIB, limits=LockAmount(None, 4096 * MIB))
    repository = bench.repository(HOG, **wanted)
    async with bench.agent(KICI_SANDBOX="none", KICI_JOB_MEMORY="160MiB"):
        await bench.orchestrator.send(bench.dispatch(repository))
        end = await bench.orchestrator.end(JOB)
        log = await bench.orchestrator.log(JOB, -1, "lowered")
    assert "the job's limit of 4 GiB (memory) is lowered to the agent's, 160 MiB (KICI_JOB_MEMORY)" in log
    assert "(limit 160 MiB, peak " in end.error


async def test_a_job_that_asks_for_another_sandbox_than_the_agent_has_does_not_run(bench: Bench) -> None:
    repository = bench.repository("echo ran", options={"sandbox": LockSandbox.CONTAINER})
    async with bench.agent(KICI_SANDBOX="none") as agent:
        await bench.orchestrator.send(bench.dispatch(repository))
        end = await bench.orchestrator.end(JOB)
        assert (end.status, end.reason) == ("failed", "preparation"), agent.log()
    assert [label for label in bench.orchestrator.hellos[0].labels if label.startswith("kici:sandbox:")] == [
        "kici:sandbox:none"
    ]
    assert end.error == ("the job asks for sandbox 'container', and this agent has none: see KICI_SANDBOX there")


@pytest.mark.parametrize(
    ("sandbox", "user"), [(None, "kici"), (LockSandbox.ISOLATED, "kici"), (LockSandbox.IMAGE_BUILD, "root")]
)
async def test_only_a_job_that_asks_may_build_images(bench: Bench, sandbox: LockSandbox | None, user: str) -> None:
    repository = bench.repository("id -un; cat README.md; pwd", options={"sandbox": sandbox})
    async with bench.agent(KICI_SANDBOX="bubblewrap", KICI_SANDBOX_ALLOW="image-build") as agent:
        await bench.orchestrator.send(bench.dispatch(repository))
        end = await bench.orchestrator.end(JOB)
        assert (end.status, end.error) == ("success", ""), agent.log()
        log = await bench.orchestrator.log(JOB, 0)
    assert log.split() == [user, "hello", "/work/src"]


async def test_a_job_without_a_network_is_checked_out_where_its_steps_and_the_agent_see_it(bench: Bench) -> None:
    """The agent fetches; only the steps are without a network."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reach = f"(exec 4<>/dev/tcp/127.0.0.1/{port}) && echo reached || echo alone"
        repository = bench.repository(f"{reach}; cat README.md; pwd; echo end")
        async with bench.agent(KICI_SANDBOX="bubblewrap", KICI_SANDBOX_NETWORK="isolated") as agent:
            await bench.orchestrator.send(bench.dispatch(repository))
            end = await bench.orchestrator.end(JOB)
            assert (end.status, end.error) == ("success", ""), agent.log()
    log = await bench.orchestrator.log(JOB, 0)
    assert "alone\n" in log
    assert "reached" not in log
    assert "hello\n" in log
    assert "/work/src\n" in log


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"KICI_SANDBOX": "none", "KICI_SANDBOX_PROFILE": "image-build"}, "needs KICI_SANDBOX=bubblewrap"),
        ({"KICI_SANDBOX": "none", "KICI_SANDBOX_ALLOW": "image-build"}, "needs KICI_SANDBOX=bubblewrap"),
        ({"KICI_SANDBOX": "both"}, "KICI_SANDBOX cannot be used"),
    ],
)
def test_an_agent_that_cannot_keep_its_jobs_as_it_must_does_not_start(
    settings: dict[str, str], reason: str, tmp_path: Path
) -> None:
    environment = {"KICI_ORCHESTRATOR_URL": "ws://127.0.0.1:9/ws", "KICI_WORK_DIR": str(tmp_path), **settings}
    ran = subprocess.run(
        [sys.executable, "-m", "kici.agent.main"],
        env={name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 1
    assert f"error: {reason}" in ran.stderr or reason in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("sandbox", ["false", "auto"])
async def test_a_job_is_checked_out_verified_run_and_reported(bench: Bench, sandbox: str) -> None:
    repository = bench.repository("cat README.md; echo $KICI_JOB_NAME $GREETING; pwd", "test -d .git")
    async with bench.agent(KICI_SANDBOX=sandbox) as agent:
        await bench.orchestrator.send(bench.dispatch(repository, env={"GREETING": "hi"}))
        end = await bench.orchestrator.end(JOB)
        assert (end.status, end.error) == ("success", ""), agent.log()
        assert "hello\nbuild hi\n" in await bench.orchestrator.log(JOB, 0)
        assert steps(bench, "running") == [-1, 0, 1]
        assert steps(bench, "success") == [-1, 0, 1]
        for body in bench.orchestrator.bodies(StepStatusChanged, status="success"):
            chunks = bench.orchestrator.bodies(LogChunk, step_index=body.step_index)
            assert body.log_chunks == len(chunks)
        assert "verified 2 files" in await bench.orchestrator.log(JOB, -1)
        agent.send(signal.SIGTERM)
        assert await agent.ended() == 0
    assert [path.name for path in (bench.base / "work").glob("slot-*/*")] == []


@pytest.mark.parametrize("sandbox", ["false", "auto"])
async def test_each_job_has_a_runner_in_which_no_job_has_been(bench: Bench, sandbox: str) -> None:
    """Twenty jobs count in a module of the SDK, which is imported before a job comes, and in their own."""
    repository = bench.repository("true")
    module = repository.root / ".kici/workflows/ci.py"
    counter = """
import kici.sdk
kici.sdk.jobs_seen = getattr(kici.sdk, "jobs_seen", 0) + 1
own = globals().get("own", 0) + 1
print("seen", kici.sdk.jobs_seen, own, flush=True)
"""
    repository.write({".kici/workflows/ci.py": module.read_text() + counter})
    repository.lock({"build": ["true"]})
    repository.commit()
    jobs = [f"0f0f0f0f-0000-0000-0000-{number:012}" for number in range(20)]
    async with bench.agent(KICI_SANDBOX=sandbox) as agent:
        for job in jobs:
            await bench.orchestrator.send(bench.dispatch(repository, job))
            assert (await bench.orchestrator.end(job)).status == "success", agent.log()
    for job in jobs:
        assert "seen 1 1" in await bench.orchestrator.log(job, 0)


async def test_a_failed_job_is_counted_as_failed(bench: Bench) -> None:
    good, bad = bench.repository("true"), KiciRepository(bench.base / "repositories" / "bad", {"build": ["exit 3"]})
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    async with bench.agent(KICI_AGENT_HTTP=str(port)) as agent:
        for job, repository in ((JOB, good), (OTHER, bad)):
            dispatch = bench.dispatch(repository, job)
            place = Checkout(f"{bench.web.url}/git/{repository.root.name}/.git", repository.sha, repository.sha)
            await bench.orchestrator.send(msgspec.structs.replace(dispatch, checkout=place))
            await bench.orchestrator.end(job)
        await bench.orchestrator.until(lambda: bench.orchestrator.heartbeats[-1].attempts == (), "an idle agent")
        async with httpx.AsyncClient() as client:

            async def counted() -> bool:
                text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
                return 'total{status="success"} 1\n' in text and 'total{status="failed"} 1\n' in text

            await until(counted)
        agent.send(signal.SIGTERM)
        assert await agent.ended() == 0


async def test_a_job_that_has_no_timeout_has_the_orchestrators(bench: Bench) -> None:
    repository = bench.repository("exec sleep 600", grace_period_ms=100)
    async with bench.agent():
        await bench.orchestrator.send(bench.dispatch(repository, timeout_ms=1_500))
        end = await bench.orchestrator.end(JOB)
    assert (end.status, end.error) == ("failed", "job_timeout: the job ran longer than its timeout of 1.5 s")


async def test_the_timeout_of_a_job_counts_its_preparation(bench: Bench) -> None:
    """Its acceptance is never acknowledged, so it never comes to its steps."""
    bench.orchestrator.answer = without(JobAccepted)
    repository = bench.repository(f"touch {bench.mark}")
    async with bench.agent():
        await bench.orchestrator.send(bench.dispatch(repository, timeout_ms=300))
        end = await bench.orchestrator.end(JOB)
    assert (end.status, end.error) == ("failed", "job_timeout: the job ran longer than its timeout of 0.3 s")
    assert end.failed_before_user_code
    assert not bench.mark.exists()


async def test_without_its_context_a_job_does_not_start(bench: Bench) -> None:
    repository = bench.repository(f"touch {bench.mark}")
    async with bench.agent() as agent:
        await bench.orchestrator.send(bench.dispatch(repository, inline=False))
        end = await bench.orchestrator.end(JOB)
    assert end.failed_before_user_code
    # The played orchestrator answers no HTTP.
    assert "context could not be fetched" in end.error
    assert "kjt_" not in agent.log()
    assert not bench.mark.exists()


async def test_a_secret_that_is_too_short_to_be_hidden_is_named(bench: Bench) -> None:
    repository = bench.repository("true")
    async with bench.agent():
        await bench.orchestrator.send(bench.dispatch(repository, secrets={"PIN": "42", "EMPTY": "", "LONG": "enough"}))
        said = await bench.orchestrator.log(JOB, -1, "checked out")
        await bench.orchestrator.end(JOB)
    assert "secret PIN is too short to be hidden: give it at least 3 bytes" in said
    assert "EMPTY" not in said
    assert "LONG" not in said


async def test_secrets_never_reach_a_log_a_status_or_our_own_log(bench: Bench) -> None:
    secret = "hunter2-hunter2"
    repository = bench.repository(
        f"printf %s {secret[:7]}; sleep 0.3; echo '{secret[7:]}'; echo -n {secret} | base64; echo {secret} >&2; exit 3"
    )
    dispatch = bench.dispatch(repository, secrets={"PASSWORD": secret})
    async with bench.agent(KICI_LOG_LEVEL="debug") as agent:
        await bench.orchestrator.send(dispatch)
        end = await bench.orchestrator.end(JOB)
        log = await bench.orchestrator.log(JOB, 0, "***")
    assert end.status == "failed"
    assert log.splitlines()[0].startswith("***")
    said = repr(bench.orchestrator.frames) + log + agent.log()
    for hidden in (secret, "aHVudGVyMi1odW50ZXIy", dispatch.job_token, "kat_0123"):
        assert hidden not in said


# ── before user code ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_user_code_does_not_start_before_the_acceptance_is_acknowledged(bench: Bench) -> None:
    repository = bench.repository(f"touch {bench.mark}")
    bench.orchestrator.answer = without(JobAccepted)
    async with bench.agent():
        await bench.orchestrator.send(bench.dispatch(repository))
        await bench.orchestrator.log(JOB, -1, "checked out")
        await settled(bench)
        assert not bench.mark.exists()
        assert steps(bench, "running") == [-1]
        bench.orchestrator.answer = lambda frame: Ack((frame.seq,))
        bench.orchestrator.cut()
        assert (await bench.orchestrator.end(JOB)).status == "success"
    assert bench.mark.exists()


async def test_a_refused_acceptance_ends_the_attempt_without_a_word(bench: Bench) -> None:
    repository = bench.repository(f"touch {bench.mark}")
    bench.orchestrator.answer = lambda frame: (
        Ack((), ((frame.seq, "an older attempt"),)) if isinstance(frame.body, JobAccepted) else Ack((frame.seq,))
    )
    async with bench.agent():
        await bench.orchestrator.send(bench.dispatch(repository))
        await bench.orchestrator.body(JobAccepted)
        beats = bench.orchestrator.heartbeats
        before = len(beats)  # an older one does not tell that the agent is idle again
        await bench.orchestrator.until(lambda: len(beats) > before and not beats[-1].attempts, "an idle agent")
        bench.orchestrator.answer = lambda frame: Ack((frame.seq,))
        await bench.orchestrator.send(bench.dispatch(repository, OTHER))
        await bench.orchestrator.end(OTHER)
    assert bench.orchestrator.bodies(JobStatusChanged, job_id=JOB) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({".kici/workflows/ci.py": "raise SystemExit\n"}, ".kici/workflows/ci.py differs from the lock file"),
        ({".kici/sitecustomize.py": ""}, ".kici/sitecustomize.py is not in the lock file"),
        ({}, ".kici/workflows/ci.py is in the lock file but missing"),
    ],
)
async def test_files_that_are_not_those_of_the_lock_fail_the_job_before_the_first_import(
    bench: Bench, change: dict[str, str], sentence: str
) -> None:
    repository = bench.repository(f"touch {bench.mark}")
    if change:
        repository.write(change)
    else:
        repository.git("rm", "--quiet", ".kici/workflows/ci.py")
    repository.commit()
    async with bench.agent():
        await bench.orchestrator.send(bench.dispatch(repository))
        end = await bench.orchestrator.end(JOB)
        assert sentence in await bench.orchestrator.log(JOB, -1, "lock file")
    assert (end.status, end.failed_before_user_code) == ("failed", True)
    assert sentence in end.error
    assert steps(bench, "failed") == [-1]
    assert not bench.mark.exists()


async def test_another_lock_file_than_the_one_that_was_matched_fails_the_job(bench: Bench) -> None:
    repository = bench.repository(f"touch {bench.mark}")
    async with bench.agent():
        await bench.orchestrator.send(bench.dispatch(repository, lock_sha256="0" * 64))
        end = await bench.orchestrator.end(JOB)
    assert end.failed_before_user_code
    assert "not the file that this run was made from" in end.error


async def test_the_workflow_of_an_untrusted_commit_is_not_used(bench: Bench) -> None:
    repository = bench.repository("cat README.md")
    trusted, lock = repository.sha, repository.lock_sha256
    repository.write({".kici/workflows/ci.py": f"open({str(bench.mark)!r}, 'w')\n", "README.md": "from a fork\n"})
    repository.commit()
    async with bench.agent():
        await bench.orchestrator.send(bench.dispatch(repository, workflow_sha=trusted, lock_sha256=lock))
        assert (await bench.orchestrator.end(JOB)).status == "success"
        assert "from a fork" in await bench.orchestrator.log(JOB, 0)
    assert not bench.mark.exists()


async def test_a_repository_that_refuses_fails_the_job_with_what_git_said(bench: Bench) -> None:
    repository = bench.repository("true")
    bench.web.authorization = "Bearer something else"
    async with bench.agent():
        await bench.orchestrator.send(bench.dispatch(repository))
        end = await bench.orchestrator.end(JOB)
    assert (end.status, end.failed_before_user_code) == ("failed", True)
    assert "git fetch failed" in end.error


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can be mounted by root only")
async def test_a_full_disk_ends_the_job_with_that_reason(bench: Bench) -> None:
    repository = bench.repository("true")
    (repository.root / "large").write_bytes(os.urandom(2_000_000))
    repository.commit()
    work = bench.base / "work"
    work.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=711", "tmpfs", str(work)], check=True)
    try:
        async with bench.agent(KICI_MIN_FREE_BYTES="0") as agent:
            await bench.orchestrator.send(bench.dispatch(repository))
            end = await bench.orchestrator.end(JOB)
            agent.send(signal.SIGTERM)
            await agent.ended()
    finally:
        subprocess.run(["umount", "-l", str(work)], check=True)
    assert (end.status, end.failed_before_user_code) == ("failed", True)
    assert end.error.startswith("disk: no space left in the agent's work directory")


# ── which attempts ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_dispatch_that_is_repeated_starts_nothing_twice(bench: Bench) -> None:
    repository = bench.repository(bench.wait_for_gate())
    dispatch = bench.dispatch(repository)
    async with bench.agent(KICI_AGENT_SLOTS="2"):
        await bench.orchestrator.send(dispatch)
        await bench.orchestrator.send(dispatch)
        await bench.orchestrator.log(JOB, 0, "started")
        await bench.orchestrator.send(dispatch)
        await settled(bench)
        bench.gate.touch()
        await bench.orchestrator.end(JOB)
        await bench.orchestrator.send(dispatch)
        await settled(bench)
    assert len(bench.orchestrator.bodies(JobAccepted)) == 1
    assert len(bench.orchestrator.bodies(JobStatusChanged)) == 1
    assert bench.orchestrator.bodies(JobRejected) == []


async def test_a_newer_attempt_replaces_an_older_and_an_older_one_is_ignored(bench: Bench) -> None:
    repository = bench.repository(bench.wait_for_gate())
    async with bench.agent(KICI_AGENT_SLOTS="2"):
        await bench.orchestrator.send(bench.dispatch(repository, attempt=2))
        await bench.orchestrator.log(JOB, 0, "started")
        await bench.orchestrator.send(bench.dispatch(repository, attempt=1))
        await bench.orchestrator.send(bench.dispatch(repository, attempt=3))
        await bench.orchestrator.body(StepStatusChanged, attempt=3, step_index=0)
        bench.gate.touch()
        end = await bench.orchestrator.end(JOB)
    assert (end.attempt, end.status) == (3, "success")
    assert [body.attempt for body in bench.orchestrator.bodies(JobAccepted)] == [2, 3]


async def test_an_agent_without_a_free_slot_or_without_disk_space_says_so(bench: Bench) -> None:
    repository = bench.repository(bench.wait_for_gate())
    async with bench.agent():
        await bench.orchestrator.send(bench.dispatch(repository))
        await bench.orchestrator.log(JOB, 0, "started")
        await bench.orchestrator.send(bench.dispatch(repository, OTHER))
        assert (await bench.orchestrator.body(JobRejected)).reason == "busy"
        bench.gate.touch()
        await bench.orchestrator.end(JOB)
        await bench.orchestrator.send(bench.dispatch(repository, OTHER))
        assert (await bench.orchestrator.end(OTHER)).status == "success"


async def test_of_two_dispatches_that_come_together_one_slot_takes_one(bench: Bench) -> None:
    repository = bench.repository("true")
    async with bench.agent():
        both = [bench.dispatch(repository, job) for job in (JOB, OTHER)]
        await asyncio.gather(*(bench.orchestrator.send(dispatch) for dispatch in both))
        taken = await bench.orchestrator.body(JobAccepted)
        refused = await bench.orchestrator.body(JobRejected)
        assert refused.reason == "busy"
        assert {taken.job_id, refused.job_id} == {JOB, OTHER}
        assert (await bench.orchestrator.end(taken.job_id)).status == "success"
        assert len(bench.orchestrator.bodies(JobAccepted)) == 1


async def test_a_job_for_which_no_place_can_be_made_ends_with_the_reason(bench: Bench) -> None:
    repository = bench.repository("true")
    async with bench.agent(KICI_STANDBY="false"):
        await bench.orchestrator.until(lambda: bench.orchestrator.heartbeats, "a heartbeat")
        (bench.base / "work" / "slot-0").write_text("in the way")
        await bench.orchestrator.send(bench.dispatch(repository))
        end = await bench.orchestrator.end(JOB)
        assert (end.status, end.failed_before_user_code) == ("failed", True)
        assert "slot-0" in end.error
        (bench.base / "work" / "slot-0").unlink()
        await bench.orchestrator.send(bench.dispatch(repository, OTHER))
        assert (await bench.orchestrator.end(OTHER)).status == "success"


async def test_with_too_little_disk_space_no_job_is_taken(bench: Bench) -> None:
    repository = bench.repository("true")
    async with bench.agent(KICI_MIN_FREE_BYTES=str(1 << 60)):
        await bench.orchestrator.send(bench.dispatch(repository))
        assert (await bench.orchestrator.body(JobRejected)).reason == "disk"


# ── cancelling ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_job_is_cancelled_during_its_checkout(bench: Bench) -> None:
    repository = bench.repository(f"touch {bench.mark}")
    bench.web.git_allowed.clear()
    async with bench.agent():
        await bench.orchestrator.send(bench.dispatch(repository))
        await asyncio.to_thread(bench.web.git_asked.wait, 20)
        await bench.orchestrator.send(Cancel(JOB, 1, "cancelled by me"))
        end = await bench.orchestrator.end(JOB)
        bench.web.git_allowed.set()
        await bench.orchestrator.send(bench.dispatch(repository, OTHER))
        assert (await bench.orchestrator.end(OTHER)).status == "success"
    assert (end.status, end.error) == ("cancelled", "cancelled by me")
    assert steps(bench, "cancelled") == [-1]


async def test_a_job_is_cancelled_before_anything_has_begun(bench: Bench) -> None:
    repository = bench.repository(f"touch {bench.mark}")
    async with bench.agent():
        await bench.orchestrator.send(bench.dispatch(repository))
        await bench.orchestrator.send(Cancel(JOB, 1, "at once"))
        end = await bench.orchestrator.end(JOB)
    assert end.status == "cancelled"
    assert not bench.mark.exists()


async def test_a_job_is_cancelled_during_a_step_and_the_step_may_clean_up(bench: Bench) -> None:
    cleaned = bench.base / "cleaned"
    command = f"trap 'touch {cleaned}; exit 1' TERM; echo started; while :; do sleep 0.05; done"
    repository = bench.repository(command, f"touch {bench.mark}", grace_period_ms=10_000)
    async with bench.agent():
        await bench.orchestrator.send(bench.dispatch(repository))
        await bench.orchestrator.log(JOB, 0, "started")
        await bench.orchestrator.send(Cancel(JOB, 2, "another attempt"))
        await bench.orchestrator.send(Cancel(JOB, 1, "cancelled by me"))
        end = await bench.orchestrator.end(JOB)
    assert (end.status, end.error) == ("cancelled", "cancelled by me")
    assert steps(bench, "cancelled") == [0]
    assert cleaned.exists()
    assert not bench.mark.exists()


async def test_a_failed_job_is_explained_to_the_orchestrator_alone_and_without_its_secrets(bench: Bench) -> None:
    """One sentence and the facts, on step, job and the last line of the log; no output in the agent's own log."""
    secret = "hunter2-hunter2"
    repository = bench.repository("echo unmistakable; echo is $WORD; exit 137")
    async with bench.agent() as agent:
        await bench.orchestrator.send(bench.dispatch(repository, secrets={"PASSWORD": secret}, env={"WORD": secret}))
        end = await bench.orchestrator.end(JOB)
        log = await bench.orchestrator.log(JOB, 0, "[kici]")
        said = agent.log()
    step = await bench.orchestrator.body(StepStatusChanged, step_index=0, status="failed")
    for one in (step, end):
        assert (one.reason, one.exit_code, one.signal) == ("exit_code", 137, "SIGKILL")
    assert step.error.endswith("exit code 137 (128 + 9: SIGKILL); its last output: is ***")
    assert end.error.endswith(f"failed: {step.error}")
    assert step.last_lines == "unmistakable\nis ***"
    assert log.splitlines()[-1] == f"[kici] {step.error}"
    assert "unmistakable" not in said
    assert secret not in repr(bench.orchestrator.frames) + said


async def test_the_same_cancel_again_does_not_shorten_the_grace_period(bench: Bench) -> None:
    """The orchestrator says it again after every reconnect."""
    command = (
        f"trap 'echo asked' TERM; echo started; until [ -e {bench.gate} ]; do sleep 1 || :; done; touch {bench.mark}"
    )
    repository = bench.repository(command, grace_period_ms=60_000)
    async with bench.agent():
        await bench.orchestrator.send(bench.dispatch(repository))
        await bench.orchestrator.log(JOB, 0, "started")
        for _ in range(3):
            await bench.orchestrator.send(Cancel(JOB, 1, "cancelled by ann"))
        await bench.orchestrator.log(JOB, 0, "asked")
        await bench.orchestrator.send(Cancel(JOB, 1, "cancelled by ben"))
        await settled(bench)
        bench.gate.touch()
        end = await bench.orchestrator.end(JOB)
    assert (end.status, end.error, end.reason) == ("cancelled", "cancelled by ann", "cancelled")
    assert bench.mark.exists()


async def test_a_step_that_writes_without_end_is_cut_and_the_agent_stays_small(bench: Bench) -> None:
    repository = bench.repository(
        "head -c 300000000 /dev/zero | tr '\\0' '\\n'; head -c 200000000 /dev/zero; echo; exit 4"
    )
    async with bench.agent(KICI_MAX_LOG_SIZE_BYTES="1000000") as agent:
        await bench.orchestrator.send(bench.dispatch(repository))
        end = await bench.orchestrator.end(JOB)
        log = await bench.orchestrator.log(JOB, 0, "[kici]")
        small = agent.rss_mb()
    assert (end.exit_code, end.reason) == (4, "exit_code")
    assert "[TRUNCATED: " in log
    assert "exit code 4" in log.splitlines()[-1]
    assert len(log) < 2_000_000
    assert small < 150


async def test_force_does_not_wait_for_the_grace_period(bench: Bench) -> None:
    repository = bench.repository("trap '' TERM; echo started; while :; do sleep 0.05; done", grace_period_ms=600_000)
    async with bench.agent():
        await bench.orchestrator.send(bench.dispatch(repository))
        await bench.orchestrator.log(JOB, 0, "started")
        await bench.orchestrator.send(Cancel(JOB, 1, "now", force=True))
        assert (await bench.orchestrator.end(JOB)).status == "cancelled"


async def test_an_attempt_that_the_orchestrator_wants_forgotten_is_killed_without_a_word(bench: Bench) -> None:
    repository = bench.repository(bench.wait_for_gate())
    async with bench.agent() as agent:
        await bench.orchestrator.send(bench.dispatch(repository))
        await bench.orchestrator.log(JOB, 0, "started")
        started = set(agent.runners())
        assert started
        bench.orchestrator.forget = (AttemptRef(JOB, 1),)
        bench.orchestrator.cut()
        await bench.orchestrator.until(lambda: len(bench.orchestrator.hellos) == 2, "a new hello")
        assert bench.orchestrator.hellos[1].attempts == (AttemptRef(JOB, 1),)
        await bench.orchestrator.until(
            lambda: not bench.orchestrator.heartbeats[-1].attempts and started.isdisjoint(agent.runners()),
            "the runner's end",
        )
    assert bench.orchestrator.bodies(JobStatusChanged) == []


# ── accidents ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_killed_runner_fails_its_job_and_the_agent_goes_on(bench: Bench) -> None:
    repository = bench.repository(bench.wait_for_gate())
    async with bench.agent() as agent:
        await bench.orchestrator.send(bench.dispatch(repository))
        await bench.orchestrator.log(JOB, 0, "started")
        os.kill(agent.runners()[0], signal.SIGKILL)
        end = await bench.orchestrator.end(JOB)
        bench.gate.touch()
        await bench.orchestrator.send(bench.dispatch(repository, OTHER))
        assert (await bench.orchestrator.end(OTHER)).status == "success"
    assert end.status == "failed"
    assert "killed by SIGKILL" in end.error
    assert not end.failed_before_user_code
    assert steps(bench, "failed") == [0]


async def test_a_job_survives_a_cut_and_what_it_wrote_meanwhile_arrives_once(bench: Bench) -> None:
    repository = bench.repository(bench.wait_for_gate())
    bench.orchestrator.answer = without(LogChunk)
    async with bench.agent():
        await bench.orchestrator.send(bench.dispatch(repository))
        await bench.orchestrator.log(JOB, 0, "started")
        first = [frame for frame in bench.orchestrator.frames if isinstance(frame.body, LogChunk)]
        bench.orchestrator.cut()
        bench.gate.touch()
        bench.orchestrator.answer = lambda frame: Ack((frame.seq,))
        assert (await bench.orchestrator.end(JOB)).status == "success"
        assert await bench.orchestrator.log(JOB, 0, "opened") == "started\nopened"
    again = [frame for frame in bench.orchestrator.frames if frame in first]
    assert len(again) == 2 * len(first)


async def test_a_job_that_ends_while_nobody_answers_is_reported_whole_later(bench: Bench) -> None:
    repository = bench.repository(bench.wait_for_gate(), "echo second")
    async with bench.agent() as agent:
        await bench.orchestrator.send(bench.dispatch(repository))
        await bench.orchestrator.log(JOB, 0, "started")
        bench.orchestrator.refuse = (1013, "later")
        bench.orchestrator.cut()
        bench.gate.touch()

        async def ended() -> bool:
            return "job ended" in agent.log()

        await until(ended)
        assert bench.orchestrator.bodies(JobStatusChanged) == []
        bench.orchestrator.refuse = None
        assert (await bench.orchestrator.end(JOB)).status == "success"
        assert "opened" in await bench.orchestrator.log(JOB, 0, "opened")
        assert "second" in await bench.orchestrator.log(JOB, 1, "second")
        assert steps(bench, "success") == [-1, 0, 1]


async def test_a_job_that_may_start_elsewhere_is_killed_and_given_up_when_nobody_answers(bench: Bench) -> None:
    """No end is told, which would keep the next attempt from starting: the next hello lists the attempt no longer."""
    repository = bench.repository(bench.wait_for_gate())
    async with bench.agent() as agent:
        await bench.orchestrator.send(bench.dispatch(repository, kill_after_silence_s=1.0))
        await bench.orchestrator.log(JOB, 0, "started")
        started = set(agent.runners())
        bench.orchestrator.answers_heartbeats = False
        # The next job's may stand by then.
        await bench.orchestrator.until(lambda: started.isdisjoint(agent.runners()), "the runner to be killed")
        await bench.orchestrator.until(lambda: bench.orchestrator.heartbeats[-1].attempts == (), "it to be given up")
        bench.orchestrator.cut()
        await bench.orchestrator.until(lambda: len(bench.orchestrator.hellos) == 2, "the next hello")
        assert bench.orchestrator.hellos[1].attempts == ()
        assert bench.orchestrator.bodies(JobStatusChanged) == []


# ── leaving ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_sigusr1_takes_no_more_jobs_and_lets_them_finish(bench: Bench) -> None:
    repository = bench.repository(bench.wait_for_gate())
    async with bench.agent(KICI_AGENT_SLOTS="2") as agent:
        await bench.orchestrator.send(bench.dispatch(repository))
        await bench.orchestrator.log(JOB, 0, "started")
        agent.send(signal.SIGUSR1)
        await bench.orchestrator.until(lambda: bench.orchestrator.heartbeats[-1].draining, "a draining heartbeat")
        await bench.orchestrator.send(bench.dispatch(repository, OTHER))
        assert (await bench.orchestrator.body(JobRejected)).reason == "draining"
        bench.gate.touch()
        assert (await bench.orchestrator.end(JOB)).status == "success"
        assert await agent.ended() == 0
        await bench.orchestrator.until(lambda: bench.orchestrator.others == [Goodbye("drained")], "a goodbye")


async def test_sigterm_cancels_jobs_after_a_while_and_reports_them(bench: Bench) -> None:
    repository = bench.repository(bench.wait_for_gate())
    async with bench.agent(KICI_DRAIN_S="0.3") as agent:
        await bench.orchestrator.send(bench.dispatch(repository))
        await bench.orchestrator.log(JOB, 0, "started")
        agent.send(signal.SIGTERM)
        agent.send(signal.SIGTERM)
        end = await bench.orchestrator.end(JOB)
        assert await agent.ended() == 0
    assert (end.status, end.error) == ("cancelled", "the agent was stopped")


@pytest.mark.parametrize("sandbox", ["false", "auto"])
async def test_an_idle_agent_is_small_and_leaves_at_once_with_the_runner_that_waits(bench: Bench, sandbox: str) -> None:
    async with bench.agent(KICI_SANDBOX=sandbox) as agent:

        async def stands() -> bool:
            return bool(agent.runners()) and bool(bench.orchestrator.heartbeats)

        await until(stands)
        await settled(bench)
        waiting = agent.runners()
        assert agent.rss_mb() < 45
        assert agent_process.rss_mb(waiting[-1]) < 45
        agent.send(signal.SIGINT)
        assert await agent.ended() == 0
        assert not any(Path(f"/proc/{pid}/exe").exists() for pid in waiting)
    assert list((bench.base / "work").glob("slot-*/*")) == []


async def test_an_agent_that_is_turned_away_says_why_and_exits(bench: Bench) -> None:
    bench.orchestrator.refuse = (CloseCode.AUTH_FAILED, "this token was revoked")
    async with bench.agent() as agent:
        assert await agent.ended() == 77
    assert "error: this token was revoked" in agent.log()


async def test_two_agents_do_not_share_a_work_directory(bench: Bench) -> None:
    async with bench.agent():
        await bench.orchestrator.until(lambda: bench.orchestrator.hellos, "the first agent")
        async with bench.agent() as second:
            assert await second.ended() == 1
    assert "another agent uses the work directory" in second.log()


async def test_settings_that_cannot_be_used_are_told_in_one_sentence(bench: Bench) -> None:
    async with bench.agent(KICI_LABELS="kici:os:linux", KICI_LABLES="x") as agent:
        assert await agent.ended() == 1
    assert agent.log().startswith("error: KICI_LABELS holds 'kici:os:linux'")
