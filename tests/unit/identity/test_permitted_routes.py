"""No route for jobs forgets to ask what the job's workflow permits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import kici

API = Path(kici.__file__).parent / "orchestrator" / "api"
FOR_EVERY_JOB = {"job_context.job_context"}
"""What a job needs to run at all."""


def called(function: ast.AsyncFunctionDef) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}


def routes_of_jobs() -> Iterator[tuple[str, set[str]]]:
    """Handlers that ask whose attempt it is, and what they call."""
    for path in sorted(API.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.AsyncFunctionDef) and "attempt_of" in (calls := called(node)):
                yield f"{path.stem}.{node.name}", calls


def test_every_route_of_a_job_asks_for_a_permission_or_is_needed_by_all() -> None:
    found = dict(routes_of_jobs())
    assert len(found) > 8
    assert {name for name, calls in found.items() if "permitted.require" not in calls} == FOR_EVERY_JOB
