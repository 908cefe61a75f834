"""One chaos from beginning to end, and its figures."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

import asyncpg
from msgspec import Struct

from kici.orchestrator.store.database import is_away
from tests.chaos import cluster, journal, verdict
from tests.chaos.cluster import Cluster
from tests.chaos.havoc import Havoc
from tests.chaos.senders import Senders
from tests.chaos.work import jobs_per_push
from tests.support.forge import Forge
from tests.support.serving import serving

QUIET_SHARE = 0.6
"""Of the time that is allowed: what has not ended by then is left in peace to end."""


class Plan(Struct, frozen=True):
    seed: int
    jobs: int = 2_000
    """Rounded up to whole pushes."""
    agents: int = 20
    slots: int = 2
    minutes: float = 4.0
    work_s: tuple[float, float] = (0.05, 0.8)
    pause_s: tuple[float, float] = (0.6, 2.4)
    """Between two kills."""


class Figures(Struct, frozen=True):
    jobs: int
    pushes: int
    attempts: int
    begun: int
    """Attempts whose user code began."""
    killed_by_silence: int
    kills: Mapping[str, int]
    answers: Mapping[str, int]
    """Of deliveries: status or error → how often."""
    took_s: float
    longest_outage: tuple[float, str]
    revivals: int
    """How often a coordinator gave up at its start, and was started again."""
    longest_recovery_s: float
    violations: list[str]

    def lines(self) -> list[str]:
        return [
            "killed: " + ", ".join(f"{count} × {kind}" for kind, count in sorted(self.kills.items())),
            f"{self.jobs} jobs of {self.pushes} pushes took {self.attempts} attempts, of which {self.begun} began user"
            f" code and {self.killed_by_silence} were killed by their agents at the deadline",
            "deliveries: " + ", ".join(f"{count} × {answer}" for answer, count in sorted(self.answers.items())),
            f"{self.took_s:.1f} s, {self.jobs / self.took_s:.1f} jobs/s; longest outage {self.longest_outage[0]:.1f} s"
            f" ({self.longest_outage[1]}), {self.revivals} coordinators started once more,"
            f" longest time from a lost attempt to the next {self.longest_recovery_s:.1f} s",
            *(f"VIOLATION: {one}" for one in self.violations[:20]),
            f"violations: {len(self.violations)}",
        ]


async def chaos(base: Path, plan: Plan, *, keep: bool = False) -> Figures:
    """`base` must be a directory that other users may pass, with a short path: PostgreSQL's socket is in it."""
    repositories = base / "repositories"
    repositories.mkdir()
    async with serving(Forge(repositories)) as forge_url, cluster.running(base, keep=keep) as here:
        senders = Senders(here, forge_url, repositories, plan.seed)
        await senders.register()
        await here.start_agents(plan.agents, plan.slots, plan.work_s)
        havoc = Havoc(here, plan.seed, pause_s=plan.pause_s)
        return await _play(here, plan, senders, havoc)


async def _play(here: Cluster, plan: Plan, senders: Senders, havoc: Havoc) -> Figures:
    pushes = -(-plan.jobs // jobs_per_push())
    jobs = pushes * jobs_per_push()
    began = time.monotonic()
    deadline = began + plan.minutes * 60
    problems: list[str] = []
    killing = asyncio.create_task(havoc.run())
    sending = asyncio.create_task(senders.deliver(pushes, plan.minutes * 60 * 0.2 / pushes))
    try:
        async with asyncio.timeout_at(_loop_time(deadline)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(_loop_time(began + plan.minutes * 60 * QUIET_SHARE)):
                    await asyncio.wait([sending])
                    await _all_ended(here, jobs)
            await _end(killing)
            await asyncio.wait([sending])
            await _all_ended(here, jobs)
    except TimeoutError:
        problems.append(f"not everything had ended after {plan.minutes:g} minutes")
    finally:
        await _end(killing)
        await _end(sending)
    took_s = time.monotonic() - began
    for coordinator in here.coordinators:
        await coordinator.ready(here.http)
    problems += havoc.failures
    problems += [f"{one.name} has ended by itself: see {one.log}" for one in here.agents if not one.alive]
    ran = verdict.stretches(here)
    problems += await verdict.violations(here, senders.accepted, jobs, ran)
    return Figures(
        jobs=jobs,
        pushes=pushes,
        attempts=await _attempts(here),
        begun=len(ran),
        killed_by_silence=sum(one.how == "killed" for one in ran),
        kills=havoc.done,
        answers=senders.answers,
        took_s=took_s,
        longest_outage=havoc.longest_outage,
        revivals=sum(one.revivals for one in here.coordinators),
        longest_recovery_s=journal.longest_recovery_s(ran),
        violations=problems,
    )


async def _all_ended(here: Cluster, jobs: int) -> None:
    """Asked of the database itself, which may be away."""
    while True:
        try:
            db = await asyncpg.connect(here.postgres.url, timeout=3)
            try:
                done = "select count(*) from execution_jobs where status in ('success', 'failed', 'infra_lost')"
                while await db.fetchval(done, timeout=5) < jobs:
                    await asyncio.sleep(0.2)
                return
            finally:
                db.terminate()
        except Exception as error:
            if not is_away(error):
                raise
        await asyncio.sleep(0.2)


async def _attempts(here: Cluster) -> int:
    db = await asyncpg.connect(here.postgres.url, timeout=10)
    try:
        return int(await db.fetchval("select coalesce(sum(attempt), 0) from execution_jobs"))
    finally:
        await db.close()


async def _end(task: asyncio.Task[None]) -> None:
    """Also what it still has to bring back. Its failure is raised."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


def _loop_time(monotonic: float) -> float:
    return asyncio.get_running_loop().time() + monotonic - time.monotonic()
