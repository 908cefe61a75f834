"""An outage is not a loss: cut networks, full disks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import stack
from tests.support.cut import Cable
from tests.support.relay import port_of
from tests.support.stack import Stack
from tests.system.test_crashes import gated


@contextlib.asynccontextmanager
async def agent(up: Stack, url: str, **env: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """An agent of its own beside a `kici up --no-agent`."""
    with (up.base / "agent.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kici.agent.main"),
            env={
                **up.env,
                "KICI_ORCHESTRATOR_URL": url,
                "KICI_AGENT_TOKEN_FILE": str(up.data / "agent.token"),
                "KICI_AGENT_ID": "apart",
                "KICI_WORK_DIR": str(up.base / "work"),
                **env,
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(40):
                await process.wait()


async def test_a_network_cut_is_shown_as_recovering_and_loses_nothing() -> None:
    async with stack.running("--no-agent", KICI_HEARTBEAT_S="0.2", KICI_SILENT_S="1") as up:
        gate = up.base / "gate"
        async with Cable(port_of(up.url)) as cable, agent(up, f"ws://127.0.0.1:{cable.port}/ws", KICI_SANDBOX="false"):
            run_id = (await up.run_of(await up.push(await up.repository(gated(gate)))))["runId"]
            await up.job(run_id, "gated", "running")
            cable.pull()
            silent = await up.job(run_id, "gated", "recovering")
            assert "silent" in silent["waitingReason"]
            gate.touch()
            cable.mend()
            assert (await up.ended(run_id))["status"] == "success"
            assert (await up.jobs(run_id))["gated"]["attempt"] == 1


@pytest.mark.skipif(os.getuid() != 0, reason="a small file system can be mounted by root only")
async def test_a_full_disk_fails_the_job_with_that_reason() -> None:
    async with stack.running("--no-agent") as up:
        work = up.base / "work"
        work.mkdir(mode=0o711)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=711", "tmpfs", str(work)], check=True)
        try:
            async with agent(up, up.url.replace("http", "ws") + "/ws", KICI_MIN_FREE_BYTES="0"):
                workflow = (
                    "from kici import job, push, workflow\n"
                    "fill = job('fill', runs_on='linux', steps=['head -c 64m /dev/zero > big'])\n"
                    "ci = workflow('ci', on=push(), jobs=[fill])\n"
                )
                run_id = (await up.run_of(await up.push(await up.repository(workflow))))["runId"]
                assert (await up.ended(run_id))["status"] == "failed"
                step = next(one for one in (await up.jobs(run_id))["fill"]["steps"] if one["stepIndex"] == 0)
                log = await up.log(run_id, (await up.jobs(run_id))["fill"]["jobId"], 0)
                assert "No space left on device" in (step["errorMessage"] or "") + "\n".join(log)
        finally:
            subprocess.run(["umount", "-l", str(work)], check=True)


async def test_a_workflow_that_raises_at_import_fails_its_job_with_the_authors_line(up: Stack) -> None:
    root = await up.repository(gated(up.base / "gate"))
    module = root / ".kici/workflows/ci.py"
    module.write_text(
        "import os\nif 'KICI_JOB' in os.environ:\n    raise RuntimeError('not today')\n" + module.read_text()
    )
    await up.kici("compile", cwd=root)
    await up.commit(root, "raise on the agent only")
    run_id = (await up.run_of(await up.push(root)))["runId"]
    assert (await up.ended(run_id))["status"] == "failed"
    job = (await up.jobs(run_id))["gated"]
    assert "not today" in job["errorMessage"]

    async def told() -> bool | None:
        return any("ci.py" in line for line in await up.log(run_id, job["jobId"], 0)) or None

    await up.until(told, "the author's line in the log", 20)


async def test_files_that_differ_from_the_lock_fail_before_the_first_import(up: Stack) -> None:
    root = await up.repository(gated(up.base / "gate"))
    module = root / ".kici/workflows/ci.py"
    marker = up.base / "imported"
    module.write_text(module.read_text() + f"\nopen({str(marker)!r}, 'w').close()\n")
    await up.commit(root, "forgot to compile")
    run_id = (await up.run_of(await up.push(root)))["runId"]
    assert (await up.ended(run_id))["status"] == "failed"
    assert ".kici/workflows/ci.py differs from the lock file" in (await up.jobs(run_id))["gated"]["errorMessage"]
    assert not marker.exists()


@pytest.mark.parametrize(
    ("lock", "status", "sentence"),
    [
        (None, "lockfile_missing", "kici compile"),
        ('{"schemaVersion": 99}', "lockfile_corrupt", "reads up to 1"),
        ("{", "lockfile_corrupt", "not a JSON object"),
        (" " * 5_000_001, "lockfile_corrupt", "the limit is 5,000,000"),
    ],
    ids=["missing", "newer", "broken", "large"],
)
async def test_a_lock_file_that_cannot_be_used_is_told_in_the_event_log(
    lock: str | None, status: str, sentence: str
) -> None:
    async with stack.running("--no-agent") as up:
        root = await up.repository(gated(Path("/nowhere")))
        path = root / ".kici/kici.lock.json"
        if lock is None:
            path.unlink()
        else:
            path.write_text(lock)
        await up.commit(root, "a bad lock file")
        await up.push(root)

        async def done() -> dict[str, str] | None:
            found = (await up.get("/event-log"))["deliveries"]
            return found[0] if found and found[0]["status"] != "received" else None

        delivery = await up.until(done, "the delivery to be processed", 30)
        assert delivery["status"] == status
        assert sentence in delivery["errorMessage"]


async def test_variables_of_other_programs_are_fine_and_misspelt_ones_are_told() -> None:
    async with stack.running("--no-agent", KICI_ADMIN_URL="http://x", KICI_HEARTBEET_S="1") as up:
        log = up.logs()
        assert "KICI_HEARTBEET_S" in log
        assert "KICI_HEARTBEAT_S" in log
        assert "KICI_ADMIN_URL" not in log
