"""What a machine gives one job: the same question on an agent and on `kici run local`."""

from __future__ import annotations

import os
from collections.abc import Callable

from kici.agent.execution import Execution
from kici.agent.sandbox.contract import Limits
from kici.engine import resources
from kici.engine.lockfile import LockAmount, LockJob


def limit(job: LockJob, execution: Execution, given: Limits, say: Callable[[str], None]) -> str:
    """Lower the limits of the job's box to what the job says, before any of its code runs, and tell what is not as it
    says. Returns why the job cannot run here; empty = it can."""
    verdict = resources.decide(job.resources, resources.Offer(_amount(given), _whole()))
    if verdict.problem or job.resources is None:
        return verdict.problem
    for remark in verdict.remarks:
        say(remark)
    held = execution.lower(_limits(verdict.limits))
    for remark in resources.not_kept(job.resources, _amount(held)):
        say(remark)
    return ""


def _whole() -> LockAmount:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = os.cpu_count()
    return LockAmount(cores * 1000 if cores else None, memory)


def _amount(limits: Limits) -> LockAmount:
    return LockAmount(None if limits.cpus is None else round(limits.cpus * 1000), limits.memory_bytes)


def _limits(amount: LockAmount) -> Limits:
    return Limits(amount.memory_bytes, None if amount.cpu_millis is None else amount.cpu_millis / 1000)
