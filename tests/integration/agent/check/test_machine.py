"""What fails on the machine itself: each with the hop that tells it, and the way out."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from kici.agent.check import boxes, machine
from kici.agent.check.hop import Result, Status, run
from kici.agent.check.known import Known
from kici.agent.sandbox import bubblewrap, cgroups
from tests.integration.agent.check.conftest import check, started

NOWHERE = "ws://127.0.0.1:9/ws"
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


async def problem(base: Path, hop: str, **variables: str) -> str:
    """What this hop tells, of a check that finds no orchestrator."""
    said = await check(base, NOWHERE, "", **variables)
    found = said.hops[hop]
    return f"{found['status']}: {found['told']} → {found['wayOut']}"


async def here(base: Path, **variables: str) -> dict[str, Result]:
    """The hops on the machine, in this process."""
    known = Known({"KICI_ORCHESTRATOR_URL": NOWHERE, "KICI_WORK_DIR": str(base / "work"), **variables})
    try:
        results = await run([*machine.HOPS, *boxes.HOPS, *boxes.LAST], known, lambda result: None)
    finally:
        known.leave()
    return {result.hop: result for result in results}


async def test_a_setting_that_is_invalid_is_named_and_what_needs_settings_is_skipped(base: Path) -> None:
    said = await check(base, NOWHERE, "", KICI_AGENT_SLOTS="none")
    assert said.failed().startswith("settings: KICI_AGENT_SLOTS cannot be used")
    assert said.hops["git"]["status"] == "ok"
    assert said.hops["work directory"]["told"] == said.hops["tcp"]["told"] == "needs settings, which is not ok"


async def test_a_variable_that_nobody_reads_and_a_token_file_that_others_read_are_warnings(base: Path) -> None:
    assert "nobody reads KICI_LABEL (did you mean KICI_LABELS?)" in await problem(base, "settings", KICI_LABEL="x")
    (base / "token").write_text("kat_x")
    (base / "token").chmod(0o644)
    told = await problem(base, "settings", KICI_AGENT_TOKEN="", KICI_AGENT_TOKEN_FILE=str(base / "token"))
    assert told.startswith("warn: ")
    assert told.endswith(f"can be read by others (-rw-r--r--) → chmod 600 {base / 'token'}")


async def test_a_bundle_that_is_none_is_told(base: Path) -> None:
    assert (await problem(base, "certificates", KICI_CA_BUNDLE=str(base / "no.pem"))).startswith(
        "fail: KICI_CA_BUNDLE names"
    )


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("/proc/kici", "fail: /proc/kici cannot be made"),
        ("/usr/lib/kici-check-test", "fail: /usr/lib/kici-check-test is below /usr, which every job sees"),
        ("/dev/shm/kici-check-test", "warn: /dev/shm/kici-check-test on tmpfs: what jobs write is memory"),
    ],
)
async def test_a_work_directory_that_jobs_must_not_have_is_told(base: Path, where: str, told: str) -> None:
    if where.startswith("/usr") and os.geteuid() != 0:
        pytest.skip("only root may write there")
    assert (await problem(base, "work directory", KICI_WORK_DIR=where)).startswith(told)
    assert not Path(where).exists()


@root_only
@pytest.mark.parametrize(
    ("options", "told"),
    [("ro", "cannot be written to (Read-only file system)"), ("noexec", "mounted noexec")],
)
async def test_a_file_system_that_jobs_cannot_use_is_told(base: Path, options: str, told: str) -> None:
    directory = base / "work"
    directory.mkdir()
    mounting = f'mount -t tmpfs -o {options} none {directory} && exec "$@"'
    said = await started(
        base,
        NOWHERE,
        "",
        {},
        "--json",
        under=("unshare", "--mount", "--propagation", "private", "sh", "-c", mounting, "sh"),
    )
    found = said.hops["work directory"]
    assert found["status"] == "fail"
    assert told in found["told"] or "Read-only file system" in found["told"]


async def test_too_little_room_is_told_with_its_number(base: Path) -> None:
    told = await problem(base, "room", KICI_MIN_FREE_BYTES=str(10**17))
    assert told.startswith("fail: no job would be taken: ")
    assert "KICI_MIN_FREE_BYTES is 100,000,000,000,000,000" in told


async def test_programs_that_are_missing_or_too_old_are_told(base: Path) -> None:
    tools = base / "tools"
    tools.mkdir()
    for name in ("bash", "tar", "sh"):
        (tools / name).symlink_to(shutil.which(name) or "")
    said = await check(base, NOWHERE, "", PATH=str(tools))
    assert "not found on PATH: git" in said.hops["programs"]["told"]
    assert said.hops["zstd"]["status"] == "warn"
    (tools / "git").write_text("#!/bin/sh\necho git version 2.25.1\n")
    (tools / "git").chmod(0o755)
    old = (await check(base, NOWHERE, "", PATH=str(tools))).hops["git"]
    assert (old["status"], old["wayOut"]) == ("fail", "install git 2.32 or newer")


@pytest.mark.parametrize(("mode", "status"), [("true", Status.FAIL), ("auto", Status.WARN)])
async def test_without_bubblewrap_who_insists_on_it_fails_and_others_are_warned(
    base: Path, monkeypatch: pytest.MonkeyPatch, mode: str, status: Status
) -> None:
    monkeypatch.setattr(bubblewrap, "find_spec", lambda name: None)
    monkeypatch.setattr("kici.agent.sandbox.bubblewrap.shutil.which", lambda name, path=None: None)
    found = (await here(base, KICI_SANDBOX=mode))["sandbox"].finding
    assert found.status is status
    assert "bubblewrap is not installed" in found.told


async def test_a_container_sandbox_without_podman_or_image_is_told(base: Path) -> None:
    told = await problem(base, "sandbox", KICI_SANDBOX="container", KICI_SANDBOX_IMAGE="localhost/kici-no-such:1")
    assert told.startswith("fail: ")
    assert "podman is not installed" in told or "localhost/kici-no-such:1 is not on this machine" in told


async def test_a_limit_that_cannot_be_kept_here_is_told(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "hierarchies", list)
    found = await here(base, KICI_SANDBOX="none", KICI_JOB_MEMORY="1GiB")
    assert found["limits"].finding.status is Status.FAIL
    assert "KICI_JOB_MEMORY" in found["limits"].finding.told
    assert found["job"].finding.status is Status.SKIPPED
    unlimited = (await here(base, KICI_SANDBOX="none"))["limits"].finding
    assert unlimited.status is Status.WARN
    assert "a fork bomb takes the machine" in unlimited.told


async def test_hooks_that_jobs_could_change_are_told(base: Path) -> None:
    hooks = base / "hooks"
    hooks.mkdir()
    told = await problem(base, "hooks", KICI_HOOKS_DIR=str(hooks))
    assert told.startswith("fail: KICI_HOOKS_DIR is set and there is no sandbox")


async def test_a_runner_that_does_not_start_is_told(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kici.agent.sandbox.none.runner_argv", lambda: [sys.executable, "-c", "raise SystemExit(9)"])
    found = (await here(base, KICI_SANDBOX="none"))["job"].finding
    assert found.status is Status.FAIL
    assert "exited with code 9 before it was ready" in found.told
    assert not (base / "work").exists()
