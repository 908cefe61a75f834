"""Resident memory of an orchestrator and of an agent that have had nothing to do for a minute."""

from __future__ import annotations

import asyncio

from tests.bench.harness import Result, machine, rss_mb
from tests.support import stack

NAMES = ("rss_orchestrator_mb", "rss_agent_mb")
IDLE_S = 60.0
LIMITS = {"rss_orchestrator_mb": ("kici.orchestrator.main", 90.0), "rss_agent_mb": ("kici.agent.main", 45.0)}


def run() -> list[Result]:
    return asyncio.run(measure())


async def measure() -> list[Result]:
    async with stack.running_on_disk(KICI_SANDBOX="auto") as up:
        await up.until(lambda: stack_has_agent(up), "a connected agent", 30)
        await asyncio.sleep(IDLE_S)
        return [_result(name, rss_mb(up.pids(module)[0]), limit) for name, (module, limit) in LIMITS.items()]


async def stack_has_agent(up: stack.Stack) -> bool | None:
    return bool((await up.get("/agents"))["agents"]) or None


def _result(name: str, value: float, limit: float) -> Result:
    return Result(name, value, "MB", samples=1, p50=value, p99=value, limit=limit, machine=machine())
