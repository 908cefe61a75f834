"""What a container keeps beyond the contract, and that none is left behind. As root: the root agent's recipe."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kici.agent import job_limits
from kici.agent.sandbox import cgroups, podman
from kici.agent.sandbox.container import ContainerSandbox
from kici.agent.sandbox.contract import BoxSpec, Limits, SandboxUnavailable
from kici.agent.sandbox.launch import SOURCE
from kici.agent.settings import Settings
from kici.runner.processes import gone
from tests.support import container_image


def containers(agent: str) -> list[str]:
    return podman.said("ps", "--all", "--quiet", f"--filter=label={podman.LABEL}={agent}").split()


def options(sandboxes: Any) -> podman.Options:
    found: podman.Options = sandboxes.sandbox._options
    return found


async def test_a_directory_that_podman_cannot_name_is_told(contained: Any, base: Path) -> None:
    odd = contained.root().rename(base / "a:b")
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(SandboxUnavailable, match="a:b': it has a colon in it"):
        await contained.sandbox.start(BoxSpec(0, odd), theirs.fileno())


async def test_a_job_in_a_container_writes_to_its_own_directories(contained: Any) -> None:
    said = await contained.said(
        "for f in /tmp/x /var/tmp/x /work/src/x ~/x /dev/shm/x; do echo x > $f || echo refused $f; done"
    )
    assert said == ""
    assert (contained.root() / "tmp" / "x").read_text() == "x\n"


async def test_a_container_has_the_path_of_its_image_and_nothing_of_the_agent_s_environment(
    contained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"/agent/only:{os.environ['PATH']}")
    monkeypatch.setenv("HTTP_PROXY", "http://agent.example")
    said = await contained.said("env; echo $HOME $TMPDIR")
    assert contained.sandbox.machine() == {"PATH": podman.PATH}
    assert "agent" not in said
    assert said.endswith("/work/home /tmp\n")


async def test_orphans_in_a_container_are_reaped(contained: Any) -> None:
    said = await contained.said(
        "for n in 1 2 3; do (setsid true &) ; done; "
        "while [ $(ls -d /proc/[0-9]* | head -c 4000 | tr ' ' '\\n' | cut -d/ -f3 | while read -r p; do "
        "read -r stat < /proc/$p/stat; case $stat in *') Z '*) echo z;; esac; done 2>/dev/null | head -c 1) ]; "
        "do sleep 0.01; done; echo clean"
    )
    assert said.endswith("clean\n")


async def test_the_agent_s_own_runner_starts_in_the_image(contained: Any) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        box = await contained.sandbox.start(BoxSpec(0, contained.root()), theirs.fileno())
        try:
            async with asyncio.timeout(30):
                assert await asyncio.get_running_loop().sock_recv(ours, 4), box.last_words()
        finally:
            await box.kill()


@pytest.mark.parametrize("when", ["at once", "while podman runs"])
async def test_a_start_that_is_cancelled_leaves_no_container(contained: Any, when: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        starting = asyncio.create_task(contained.sandbox.start(BoxSpec(0, contained.root()), theirs.fileno()))
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            while when != "at once" and not containers(options(contained).agent):
                await asyncio.sleep(0.01)
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await starting).kill()
    assert containers(options(contained).agent) == []


async def test_a_container_that_does_not_come_up_is_removed(contained: Any) -> None:
    root = contained.root()
    (root / "tmp").rmdir()  # podman cannot mount it
    (root / "tmp").symlink_to("/nonexistent")
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(SandboxUnavailable, match="podman run failed"):
        await contained.sandbox.start(BoxSpec(0, root), theirs.fileno())
    assert containers(options(contained).agent) == []


@pytest.mark.parametrize("watched", [True, False])
async def test_an_agent_that_is_killed_leaves_no_container(contained: Any, watched: bool) -> None:
    """Its watcher removes it; where that was killed too, the next start of an agent with the same directory does."""
    agent, other = f"dead{os.getpid()}", f"other{os.getpid()}"
    program = f"""
import asyncio, socket
from pathlib import Path
from kici.agent.sandbox import container
from kici.agent.sandbox.podman import Options
from kici.agent.sandbox.contract import BoxSpec

container.ContainerSandbox._probe = lambda self: None

async def main():
    ours, theirs = socket.socketpair()
    for name, slot in (({other!r}, 6), ({agent!r}, 5)):
        sandbox = container.ContainerSandbox(Options({options(contained).image!r}, name))
        root = Path({str(contained.root(5).parent)!r}) / f"job-{{slot}}"
        script = "setsid sleep 1000 & sleep 1000"
        box = await sandbox.run(BoxSpec(slot, root), ["/bin/bash", "-c", script], theirs.fileno())
    print(box.pid, box._watcher.child.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    contained.root(6)
    environment = podman.environment() | {"PYTHONPATH": str(SOURCE)}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout
        try:
            pid, watcher = map(int, process.stdout.readline().split())
            if not watched:
                os.kill(watcher, 9)
        finally:
            process.kill()
    try:
        if not watched:
            assert containers(agent), "nothing was left: this test shows nothing"
            assert len(podman.sweep(agent)) == 1
        async with asyncio.timeout(30):
            assert await gone([pid], 20)
            while containers(agent):
                await asyncio.sleep(0.05)
    finally:
        podman.sweep(agent)
        podman.sweep(other)


async def test_the_sweep_takes_no_other_agent_s_container(contained: Any) -> None:
    async with contained.running("echo up; sleep 1000") as boxed:
        await boxed.line()
        assert podman.sweep(f"somebody{os.getpid()}") == []
        assert len(containers(options(contained).agent)) == 1
    assert containers(options(contained).agent) == []


def test_an_image_that_cannot_run_jobs_is_refused_with_what_it_lacks(contained: Any, tmp_path: Path) -> None:
    with (
        container_image.made(tmp_path, without="bash") as image,
        pytest.raises(SandboxUnavailable, match="has no bash"),
    ):
        ContainerSandbox(podman.Options(image, f"lacking{os.getpid()}"))


def test_an_agent_asks_podman_once_what_machine_this_is(
    contained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, podman_s = tmp_path / "calls", tmp_path / "podman"
    podman_s.write_text(f'#!/bin/sh\necho "$1" >> {calls}\nexec {podman.program()} "$@"\n')
    podman_s.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    job_limits.limited(Settings(orchestrator_url="ws://host", sandbox="container"))
    ContainerSandbox(podman.Options(options(contained).image, f"once{os.getpid()}"))
    assert calls.read_text().split().count("info") == 1

    monkeypatch.setenv("CONTAINERS_CONF", str(tmp_path / "containers.conf"))  # what it says may be another now
    (tmp_path / "containers.conf").write_text('[containers]\nseccomp_profile = "/of/another"\n')
    assert podman.machine().seccomp == Path("/of/another")


def test_an_image_that_is_not_here_is_told_or_pulled_by_the_policy(contained: Any) -> None:
    with pytest.raises(SandboxUnavailable, match="is not on this machine, and KICI_SANDBOX_PULL=never"):
        ContainerSandbox(podman.Options("localhost/kici-absent:1", "absent", "never"))
    with pytest.raises(SandboxUnavailable, match="podman pull failed"):
        ContainerSandbox(podman.Options("localhost:1/kici-absent:1", "absent", "missing"))


@pytest.mark.parametrize(
    "name", ["", "-v", "--privileged", "a b", "x;reboot", "UPPER/case", "a:tag:tag", "x\n", "a@sha256:1"]
)
def test_a_name_that_is_no_image_s_never_reaches_podman(name: str) -> None:
    with pytest.raises(SandboxUnavailable, match="KICI_SANDBOX_IMAGE"):
        podman.check_image(name)


def test_a_limit_that_podman_cannot_set_is_refused_by_its_setting_and_the_default_is_left_out() -> None:
    wanted = Limits(memory_bytes=1024**3)
    assert cgroups.enforceable_by_podman({"memory", "pids"}, wanted) == Limits(1024**3, None, cgroups.DEFAULT_PIDS)
    assert cgroups.enforceable_by_podman((), Limits()) == Limits()
    with pytest.raises(SandboxUnavailable, match=r"KICI_JOB_MEMORY: podman cannot limit that here.*`memory`"):
        cgroups.enforceable_by_podman({"pids"}, wanted)
    with pytest.raises(SandboxUnavailable, match="KICI_JOB_PIDS"):
        cgroups.enforceable_by_podman({"memory"}, Limits(pids=100))


def test_a_limit_that_podman_did_not_set_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "pids.max").write_text("max\n")
    (tmp_path / "memory.limit_in_bytes").write_text("104857600\n")
    cgroups.check([tmp_path], Limits(memory_bytes=100 * 1024**2))
    with pytest.raises(SandboxUnavailable, match="KICI_JOB_PIDS: podman does not set that limit here"):
        cgroups.check([tmp_path], Limits(pids=100))
