"""One engine: what `kici run local` says of a workflow is what becomes of it through a coordinator and an agent.

Statuses, reasons, outputs and attempts of every job, and statuses, attempts, exit codes and errors of every step, of
workflows that hypothesis makes up.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.support import generated
from tests.support.stack import Stack

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
        here, there = await asyncio.gather(_here(up, root), _there(up, sha, len(chunk)))
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
    """One whose timeout counts is alone: its jobs must not wait for those of others."""
    timed = [name for name, one in workflows.items() if one.timeout]
    others = [name for name in workflows if name not in timed]
    for names in [*([name] for name in timed), *batched(others, AT_ONCE)]:
        yield {name: workflows[name] for name in names}


def batched(names: list[str], size: int) -> Iterator[list[str]]:
    for first in range(0, len(names), size):
        yield names[first : first + size]


async def _here(up: Stack, root: Path) -> dict[str, Any]:
    said = await up.kici("run", "local", "--event", "push", "--changed", "src/a.txt", "--json", cwd=root, check=False)
    # What it says while it runs follows.
    document, _ = json.JSONDecoder().raw_decode(said, said.index("{\n"))
    return {
        one["name"]: {
            "status": one["status"],
            "jobs": _jobs({job["name"]: _job(job, job.get("error"), job["steps"]) for job in one["jobs"]}),
        }
        for one in document["workflows"]
    }


async def _there(up: Stack, sha: str, expected: int) -> dict[str, Any]:
    await up.run_of(sha, deadline=60)
    found = {}
    for run in await up.runs(sha):
        ended = await up.ended(run["runId"], deadline=180)
        jobs = await up.jobs(run["runId"])
        found[run["workflowName"]] = {
            "status": ended["status"],
            "jobs": _jobs({name: _job(job, job.get("errorMessage"), _steps(job)) for name, job in jobs.items()}),
        }
    return found


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
        "error": error or "",
        "outputs": job.get("outputs") or {},
        "steps": [
            (one["name"], one["status"], max(one.get("attempt", 1), 1), one.get("exitCode"), one.get("error") or "")
            for one in steps
        ],
    }


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
