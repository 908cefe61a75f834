"""Ends of runs and jobs become events where a workflow wants to be told of them, in the transaction of the end."""

from __future__ import annotations

from collections.abc import Collection

from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.store import completions
from kici.orchestrator.store.database import Db


async def tell(db: Db, locked: Locked, *, runs: Collection[str] = (), jobs: Collection[str] = ()) -> None:
    """`runs` and `jobs` have ended in this transaction, and somebody may want to know."""
    found = await completions.of_jobs(db, jobs) if jobs else []
    found += await completions.of_runs(db, runs) if runs else []
    if found:
        await completions.insert(db, found)
        locked.wakes.events = True
