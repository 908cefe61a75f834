"""No route for jobs forgets to ask what the job's workflow permits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import kici

API = Path(kici.__file__).parent / "orchestrator" / "api"
FOR_EVERY_JOB = {"job_context.job_context"}
"""What a job needs to run at all."""
OF_WHAT_HAS_BEGUN = {f"uploads.{name}" for name in ("upload_urls", "upload_part", "complete_upload", "abandon_upload")}
"""`uploads.begin_upload` has asked."""


def called(function: ast.AsyncFunctionDef) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}


def routes_of_jobs() -> Iterator[tuple[str, set[str]]]:
    """Handlers that ask whose attempt it is, and what they call, themselves or through a function of their module."""
    for path in sorted(API.glob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text()))
        calls = {node.name: called(node) for node in nodes if isinstance(node, ast.AsyncFunctionDef)}
        for name, direct in calls.items():
            if "attempt_of" in direct:
                yield f"{path.stem}.{name}", direct.union(*(calls.get(one, set()) for one in direct))


def test_every_route_of_a_job_asks_for_a_permission_or_is_needed_by_all() -> None:
    found = dict(routes_of_jobs())
    assert len(found) > 8
    silent = {name for name, calls in found.items() if "permitted.require" not in calls}
    assert silent == FOR_EVERY_JOB | OF_WHAT_HAS_BEGUN
