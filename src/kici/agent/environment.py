"""The whole environment of user code: an allow-list of the machine's, the job's own, and what says where it runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from kici.agent import ca_bundle as ca_bundles
from kici.wire.context import JobContext

ALLOWED = ("PATH", "SHELL", "LANG", "LC_ALL", "TERM", "TZ")
_PROXY = re.compile(r"(HTTP|HTTPS|ALL|NO)_PROXY", re.IGNORECASE)


def of_job(
    context: JobContext,
    *,
    sha: str,
    ref: str,
    home: str,
    tmp: str,
    ca_bundle: str = "",
    machine: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Later ones win: the machine's, ours, what the workflow and the job set. `home` and `tmp` as the job sees them.

    `sha` and `ref` are those of the checkout; an empty `ref` is the event's.
    """
    event = context.event
    ours = {
        "CI": "true",
        "HOME": home,
        "TMPDIR": tmp,
        "KICI_RUN_ID": context.run_id,
        "KICI_RUN_URL": context.run_url,
        "KICI_JOB_ID": context.job_id,
        "KICI_WORKFLOW": context.workflow,
        "KICI_JOB": context.job,
        "KICI_JOB_NAME": context.name,
        "KICI_ATTEMPT": str(context.attempt),
        "KICI_EVENT": event.type.value,
        "KICI_REPO": event.repo,
        "KICI_REF": ref or event.ref,
        "KICI_SHA": sha,
    }
    allowed = {name: machine[name] for name in ALLOWED if name in machine} | proxies(machine)
    if ca_bundle:
        ours |= ca_bundles.variables(ca_bundle)
    return allowed | {name: value for name, value in ours.items() if value} | dict(context.env)


def proxies(machine: Mapping[str, str]) -> dict[str, str]:
    """The machine's, for jobs: those without a user and password, which are the operator's own."""
    return {name: value for name, value in machine.items() if _PROXY.fullmatch(name) and "@" not in value}
