"""An event that a workflow emitted: written by the API like any delivery, matched by the pipeline.

Its row in the event log: `provider` and `event` are `kici_event`, `action` is the event's name, `routing_key`,
`repo_identifier` and `ref` are those of the run that emitted it, and the body is `Emitted`.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

PROVIDER = "kici_event"
"""Of the event's row. No source has this provider, so no webhook can pass for a workflow."""
MAX_CHAIN_DEPTH = 10
"""Of an event that led to an event that led to …: a circle of workflows ends here."""
MAX_PER_MINUTE = 100
"""Events of one workflow that start runs, in one minute of the clock. The end of a workflow counts only if an event of
a workflow had started it: nobody's events start so many that many workflows may not end at once."""


class Emitted(Struct, frozen=True, rename="camel"):
    """Body of the event."""

    name: str
    payload: Any
    repo: str
    """Of the run that emitted it, like all that follows."""
    provider: str
    routing_key: str
    """Of the source through which the repository is reached."""
    clone_url: str
    default_branch: str
    branch: str
    sha: str
    run_id: str
    job_id: str
    workflow: str
    job: str
    """With the matrix suffix."""
    chain_depth: int
    """1 to `MAX_CHAIN_DEPTH`: of the event that the runs which this one starts get as theirs."""
