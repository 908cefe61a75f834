"""How a workflow last went on a branch."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from kici.orchestrator.store.database import Db

LOOK_BACK = 200
"""Runs of one workflow on one branch. What has not succeeded for so long counts as never checked."""


class LastRuns(Struct, frozen=True):
    success: str = ""
    """Commit of the newest run that succeeded, of the newest `LOOK_BACK`; empty if none did."""
    any: bool = False
    """There is a run at all."""


async def of_branch(db: Db, repo: str, clone_url: str, ref: str, workflows: Sequence[str]) -> dict[str, LastRuns]:
    """Workflow → its last runs that pushes have started, reruns of them too. Absent if it has none.

    Also of runs that came through another source of the same repository: `clone_url` says that it is the same.
    """
    # A range and not an equality: so only the index of the branch gives the order, and a name that has few runs is not
    # looked for along all runs by time.
    rows = await db.fetch(
        """
        select w.name, last.sha, last.status
          from unnest($4::text[]) as w (name)
         cross join lateral (
           select r.sha, r.status, r.created_at
             from execution_runs r
            where r.repo_identifier = $1 and r.ref = $3 and r.workflow_name between w.name and w.name
              and r.clone_url = $2 and r.trigger_event = 'push'
            order by r.workflow_name, r.created_at desc
            limit $5
         ) last
         order by w.name, last.created_at desc
        """,
        repo,
        clone_url,
        ref,
        list(workflows),
        LOOK_BACK,
    )
    found: dict[str, LastRuns] = {}
    for row in rows:
        known = found.get(row["name"], LastRuns())
        success = known.success or (row["sha"] if row["status"] == "success" else "")
        found[row["name"]] = LastRuns(success, any=True)
    return found
