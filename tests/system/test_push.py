"""The main job: a push becomes a finished run."""

from __future__ import annotations

from pathlib import Path

from tests.support import stack
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


def _files() -> dict[str, str]:
    return {name: (DEMO / name).read_text() for name in ("greet.py", "test_greet.py")}
