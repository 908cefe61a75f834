"""Names that authors know from the documentation and that this version does not have yet, and how to say so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kici.nearest import nearest
from kici.sdk.errors import Elsewhere, NotYet
from kici.sdk.problems import refuse

LATER = frozenset({"only_on_first_host", "only_on_last_host", "only_on_fanout_index"})
ELSEWHERE = {"fixture": "kici.testing"}
"""Name → the module that has it."""

WORKFLOW_OPTIONS = frozenset({"approval"})
JOB_OPTIONS = frozenset({"runs_on_all", "container", "services", "approval"})
STEP_OPTIONS = frozenset({"approval", "check", "apply", "summarize", "when_in_sync"})


def why_not(name: str) -> ImportError | None:
    """What importing this name from `kici` fails with; None if it is no word of ours."""
    if name in LATER:
        return NotYet(f"kici has no {name!r} yet: it is planned, but not in this version", name="kici")
    if name in ELSEWHERE:
        return Elsewhere(f"write `from {ELSEWHERE[name]} import {name}`", name="kici")
    return None


def check_options(subject: str, given: Mapping[str, Any], known: Iterable[str], later: frozenset[str]) -> None:
    """Refuse options that do not exist, telling those that will from those that never were."""
    names = list(known)
    for option in given:
        if option in later:
            refuse(subject, f"the option {option!r} is not there yet: it is planned, but not in this version")
        elif option not in names:
            refuse(
                subject, f"there is no option {option!r}{nearest(option, names)}; there are {', '.join(sorted(names))}"
            )
