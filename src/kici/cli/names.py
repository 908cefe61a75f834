"""Names that a shell completes: workflows and jobs from the committed lock file, runs from the orchestrator.

A completion never fails and never waits long: what cannot be known at once is not offered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kici.errors import KiciError

if TYPE_CHECKING:
    import click

    from kici.engine.lockfile import LockFile

PATIENCE_S = 2.0
_RUNS = 20


def workflows(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    lock = _lock()
    return [one.name for one in lock.workflows if one.name.startswith(incomplete)] if lock else []


def jobs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Of the workflow that is named already, else of all."""
    lock = _lock()
    only = context.params.get("workflow") or context.params.get("only") or ""
    found = [
        job.name
        for workflow in (lock.workflows if lock else ())
        if not only or workflow.name == only
        for job in workflow.jobs
    ]
    return sorted({name for name in found if name.startswith(incomplete)})


def runs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The newest ones."""
    from kici.cli import client as clients
    from kici.wire import api

    try:
        with clients.configured(timeout_s=PATIENCE_S) as client:
            found = client.get("/runs", api.RunList, {"limit": _RUNS, "idPrefix": incomplete or None})
    except KiciError:
        return []
    return [run.run_id for run in found.runs]


def _lock() -> LockFile | None:
    from kici.cli import repository
    from kici.engine import lockfile

    try:
        return lockfile.decode((repository.root() / lockfile.PATH).read_bytes())
    except (KiciError, OSError):
        return None
