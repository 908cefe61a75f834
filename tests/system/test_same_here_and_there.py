"""One engine: what `kici run local` says of a workflow is what becomes of it through a coordinator and an agent.

Statuses, reasons, outputs and attempts of every job, and statuses, attempts, exit codes and errors of every step, of
workflows that hypothesis makes up.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.support import generated
from tests.support.stack import Stack

READY = b"READY TO BE CANCELLED"
AT_ONCE = 10
"""Workflows of one commit."""


def made_up(count: int, of: int) -> list[generated.Workflow]:
    """Workflows that the seed decides."""
    found: list[generated.Workflow] = []

    @seed(of)
    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(generated.workflows())
    def draw(workflow: generated.Workflow) -> None:
        found.append(workflow)

    draw()
    return found


async def compare(up: Stack, count: int, of: int) -> int:
    """The number of jobs that were compared."""
    workflows = {f"w{number}": one for number, one in enumerate(made_up(count, of))}
    root = await up.repository("", name="generated", files={"README.md": "before\n"}, compiled=False)
    await up.push(root)
    modules = root / ".kici/workflows"
    jobs = 0
    for first, chunk in enumerate(_chunks(workflows)):
        text = generated.HEAD + "".join(generated.text(name, one) for name, one in chunk.items())
        (modules / "ci.py").write_text(text)
        (root / "src").mkdir(exist_ok=True)
        (root / "src/a.txt").write_text(f"{first}\n")
        await up.kici("compile", cwd=root)
        await up.commit(root, f"workflows from {first}")
        sha = await up.push(root)
        cancelled = any(one.ending == "person" for one in chunk.values())
        here, there = await asyncio.gather(
            _here(up, root, cancelled=cancelled), _there(up, sha, len(chunk), cancelled=cancelled)
        )
        for name in chunk:
            differing = _differing(here.get(name), there.get(name))
            assert not differing, f"{name} of seed {of}: {differing}\n{generated.text(name, chunk[name])}"
            jobs += len(here.get(name, {"jobs": {}})["jobs"])
    return jobs


def _differing(here: Any, there: Any, where: str = "") -> list[str]:
    """Each value that is not the same, with both."""
    if isinstance(here, dict) and isinstance(there, dict):
        keys = sorted(here.keys() | there.keys())
        return [one for key in keys for one in _differing(here.get(key), there.get(key), f"{where} › {key}")]
    if isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        pairs = enumerate(zip(here, there, strict=True))
        return [one for index, (a, b) in pairs for one in _differing(a, b, f"{where} › {index}")]
    return [] if here == there else [f"{where}: here {here!r}, there {there!r}"]


def _chunks(workflows: dict[str, generated.Workflow]) -> Iterator[dict[str, generated.Workflow]]:
    """One whose timeout counts is alone: its jobs must not wait for those of others. So is one that is cancelled."""
    alone = [name for name, one in workflows.items() if one.ending]
    others = [name for name in workflows if name not in alone]
    for names in [*([name] for name in alone), *batched(others, AT_ONCE)]:
        yield {name: workflows[name] for name in names}


def batched(names: list[str], size: int) -> Iterator[list[str]]:
    for first in range(0, len(names), size):
        yield names[first : first + size]


async def _here(up: Stack, root: Path, *, cancelled: bool = False) -> dict[str, Any]:
    command = ("run", "local", "--event", "push", "--changed", "src/a.txt", "--json")
    if cancelled:
        said = await _interrupted(up, *command, cwd=root)
    else:
        said = await up.kici(*command, cwd=root, check=False)
    # What it says while it runs follows.
    document, _ = json.JSONDecoder().raw_decode(said, said.index("{\n"))
    return {
        one["name"]: {
            "status": one["status"],
            "jobs": _jobs({job["name"]: _job(job, job.get("error"), job["steps"]) for job in one["jobs"]}),
        }
        for one in document["workflows"]
    }


async def _interrupted(up: Stack, *command: str, cwd: Path) -> str:
    """What it said in all: SIGINT when the step says that it is ready for it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kici.cli.main", *command), cwd=cwd, env=up.env, stdout=PIPE, stderr=STDOUT
    )
    assert process.stdout
    said = b""
    async with asyncio.timeout(120):
        while data := await process.stdout.read(65_536):
            said += data
            if READY in said:
                process.send_signal(signal.SIGINT)
                said += await process.stdout.read()
        await process.wait()
    return said.decode()


async def _cancelled_by_a_person(up: Stack, run_id: str) -> None:
    job = await up.job(run_id, "last", "running", deadline=120)

    async def is_ready() -> bool | None:
        return READY.decode() in await up.log(run_id, job["jobId"], 0) or None

    await up.until(is_ready, "the step that waits", 60)
    await up.kici("runs", "cancel", run_id)


async def _there(up: Stack, sha: str, expected: int, *, cancelled: bool = False) -> dict[str, Any]:
    await up.run_of(sha, deadline=60)
    found = {}
    for run in await up.runs(sha):
        if cancelled:
            await _cancelled_by_a_person(up, run["runId"])
        ended = await up.ended(run["runId"], deadline=180)
        jobs = await up.jobs(run["runId"])
        found[run["workflowName"]] = {
            "status": ended["status"],
            "jobs": _jobs({name: _job(job, job.get("errorMessage"), _steps(job)) for name, job in jobs.items()}),
        }
    return found


_BY_SOMEBODY = re.compile(r"cancelled by SIGINT|run cancelled via API|cancelled by .*")
_UNMET = re.compile(r"(.+) ended as (\w+) \(needed .+\)")


def _jobs(jobs: dict[str, Any]) -> dict[str, Any]:
    """A job is skipped as soon as one of its needs cannot be met any more. Which one is told, if several cannot, is a
    matter of which ended first; that it is true is checked here."""
    for job in jobs.values():
        parts = [_UNMET.fullmatch(part) for part in job["error"].split("; ")]
        if all(part and jobs.get(part[1], {}).get("status") == part[2] for part in parts):
            job["error"] = "a need that cannot be met"
    return jobs


def _job(job: dict[str, Any], error: str | None, steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "status": job["status"],
        "error": _said(error),
        "outputs": job.get("outputs") or {},
        "steps": [
            (one["name"], one["status"], max(one.get("attempt", 1), 1), one.get("exitCode"), _said(one.get("error")))
            for one in steps
        ],
    }


def _said(error: str | None) -> str:
    """Who cancels is another one here and there."""
    return _BY_SOMEBODY.sub("cancelled by a person", error or "")


def _steps(job: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {**step, "name": step["stepName"], "error": step.get("errorMessage")}
        for step in job["steps"]
        if step["stepIndex"] >= 0
    ]


@pytest.mark.timeout(240)
async def test_a_workflow_ends_there_as_it_ends_here(up: Stack) -> None:
    assert await compare(up, 12, of=1) > 12


@pytest.mark.proof
@pytest.mark.timeout(1800)
async def test_two_hundred_workflows_end_there_as_they_end_here(up: Stack) -> None:
    of = int(os.environ.get("SEED") or 7)
    print(f"workflows of seed {of}: SEED=n make proofs draws others")
    jobs = await compare(up, 200, of)
    print(f"compared {jobs} jobs of 200 workflows")
    assert jobs > 200
