from __future__ import annotations

import re
from pathlib import Path

from kici.engine.lifecycle import ON_AGENT, TERMINAL_RUN, JobStatus, RunStatus
from kici.orchestrator import store

JOBS_ON_AGENTS = frozenset(map(str, ON_AGENT))
OPEN_RUNS = frozenset(map(str, set(RunStatus) - TERMINAL_RUN))
_LIST = re.compile(r"\bstatus in \(([^)]*)\)")

KNOWN = {
    JOBS_ON_AGENTS,
    frozenset(map(str, TERMINAL_RUN)),  # whose slot in a group is free
    OPEN_RUNS,
    frozenset({"pending", "running"}),  # steps that have not ended; runs whose deadline counts
    frozenset({"pending", "queued", "recovering", "cancelling"}),  # jobs that wait, and say why
    frozenset(map(str, TERMINAL_RUN)),
    frozenset({"queued", "running", "recovering", "cancelling"}),  # jobs that take up a place in a window
    frozenset({"active", "queued"}),  # of a concurrency group
    frozenset({"active", "queued", "completed", "cancelled"}),  # all of one
}


def test_a_list_of_statuses_in_sql_is_one_that_the_engine_knows() -> None:
    """A partial index serves only a condition with literals: they are written out, and must follow the engine."""
    found = {}
    for path in sorted(Path(store.__path__[0]).rglob("*")):
        if path.suffix not in {".py", ".sql"} or path.name.startswith("0001") or path.name.endswith(".down.sql"):
            continue
        for match in _LIST.finditer(path.read_text()):
            statuses = frozenset(re.findall(r"'(\w+)'", match[1]))
            if statuses & frozenset(map(str, {*JobStatus, *RunStatus})):
                found[f"{path.name}: {match[0]}"] = statuses
    assert found
    assert {where for where, statuses in found.items() if statuses not in KNOWN} == set()
