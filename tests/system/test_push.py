"""The main job: a push becomes a finished run."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support import example, stack
from tests.support.stack import Stack

DEMO = Path(__file__).parents[2] / "demo" / "repository"


async def test_a_push_becomes_a_finished_run(up: Stack) -> None:
    root = await up.repository((DEMO / ".kici/workflows/ci.py").read_text(), files=_files())
    sha = await up.push(root)
    run = await up.ended((await up.run_of(sha))["runId"])
    jobs = await up.jobs(run["runId"])

    assert run["status"] == "success", jobs
    assert {name: job["status"] for name, job in jobs.items()} == {
        "build": "success",
        "test (lower)": "success",
        "test (upper)": "success",
        "report": "success",
    }
    assert jobs["build"]["outputs"] == {"greet": {"text": "Hello from main, this is kici", "length": 29}}
    assert [(step["stepName"], step["status"]) for step in jobs["test (upper)"]["steps"] if step["stepIndex"] >= 0] == [
        ("python3 -m unittest -q", "success"),
        ("style", "failed"),
        ("measure", "success"),
    ]
    assert next(step for step in jobs["test (upper)"]["steps"] if step["stepName"] == "style")["exitCode"] == 3
    log = await up.log(run["runId"], jobs["test (upper)"]["jobId"], 2)
    assert [line for line in log if line.isupper()] == ["HELLO", "FROM", "MAIN,", "THIS", "IS", "KICI"]
    assert "2 tests agree on 29 characters" in await up.kici("runs", "logs", run["runId"])
    shown = await up.kici("runs", "show", run["runId"])
    assert "test (upper)" in shown
    assert "✓ report" in shown


async def test_a_run_can_be_started_by_hand_and_followed(up: Stack) -> None:
    root = await up.repository((DEMO / ".kici/workflows/ci.py").read_text(), files=_files())
    await up.ended((await up.run_of(await up.push(root)))["runId"])
    await up.kici("runs", "start", "ci", "--ref", "main")
    by_hand = next(run for run in await up.runs() if run["triggerEvent"].startswith("manual"))
    followed = await up.kici("runs", "logs", "-f", by_hand["runId"])
    assert "2 tests agree" in followed
    assert (await up.ended(by_hand["runId"]))["status"] == "success"


async def test_stopping_leaves_no_process_and_starting_again_keeps_the_runs(up: Stack) -> None:
    root = await up.repository((DEMO / ".kici/workflows/ci.py").read_text(), files=_files())
    run_id = (await up.ended((await up.run_of(await up.push(root)))["runId"]))["runId"]
    before = {pid: stack.command_line(pid) for part in ("kici.", "postgres") for pid in up.pids(part)}
    assert len(before) > 3
    await up.stop()
    assert [line for pid, line in before.items() if stack.command_line(pid) == line] == []

    again = Stack(up.base, {})
    await again.start()
    try:
        assert (await again.get(f"/runs/{run_id}"))["run"]["status"] == "success"
    finally:
        await again.stop()


async def test_the_documented_example_runs_remotely_but_for_what_is_not_there_yet() -> None:
    """`lint` and `build` with an artifact each; `deploy` says that environments are missing."""
    async with stack.running(KICI_SANDBOX="false", PATH=f"{example.TOOLS}{os.pathsep}{os.environ['PATH']}") as up:
        root = await up.repository(example.WORKFLOW)
        await up.run("git", "tag", "v1.2", cwd=root)
        await up.run("git", "push", "-q", "kici", "v1.2", cwd=root)
        run = await up.ended((await up.run_of(await up.push(root)))["runId"])
        jobs = await up.jobs(run["runId"])
        assert {name: job["status"] for name, job in jobs.items()} == {
            "lint": "success",
            "build (3.11)": "success",
            "build (3.13)": "success",
            "deploy": "failed",
        }, {name: job["errorMessage"] for name, job in jobs.items()}
        assert "environment" in jobs["deploy"]["errorMessage"]
        assert "not there yet" in jobs["deploy"]["errorMessage"]
        assert jobs["build (3.11)"]["outputs"]["build_wheel"] == {"version": "v1.2", "path": "dist/app-v1.2.whl"}
        kept = (await up.get(f"/runs/{run['runId']}/artifacts"))["artifacts"]
        assert sorted(one["name"] for one in kept) == ["wheel-3.11", "wheel-3.13"]


async def test_a_server_of_ones_own_takes_the_place_of_the_embedded_one(database_url: str) -> None:
    async with stack.running(KICI_DATABASE_URL=database_url) as up:
        root = await up.repository((DEMO / ".kici/workflows/ci.py").read_text(), files=_files())
        assert (await up.ended((await up.run_of(await up.push(root)))["runId"]))["status"] == "success"
        assert not (up.data / "postgres").exists()


async def test_the_api_describes_itself(up: Stack) -> None:
    described = (await up.http.get(f"{up.url}/schema/openapi.json")).json()
    assert "/api/v1/admin/runs/{run_id}/jobs" in described["paths"]
    assert (await up.http.get(f"{up.url}/health")).json()["status"] == "ok"
    assert (await up.http.get(f"{up.url}/ready")).json()["checks"] == {"database": True, "lease": True}
    assert "kici_dispatches_total" in (await up.http.get(f"{up.url}/metrics")).text


def _files() -> dict[str, str]:
    return {name: (DEMO / name).read_text() for name in ("greet.py", "test_greet.py")}
