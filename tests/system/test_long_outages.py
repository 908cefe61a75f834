"""Outages longer than every time-out: what may not be repeated runs on, the rest is killed before it is repeated."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kici.orchestrator.store.embedded import EmbeddedPostgres
from tests.support import replicas
from tests.support.cut import Cable
from tests.support.postgres import memory, reachable_folder
from tests.support.replicas import Replicas

LONGER_S = 12.0
"""Than silence, lease, recovery (3 s) and the margin (5 s) together."""

WORKFLOW = """
import time
from pathlib import Path

from kici import Ctx, Retry, job, push, workflow

async def tick(ctx: Ctx) -> None:
    await ctx.sh(
        "while ! test -e {gate}; do echo $KICI_ATTEMPT $(cut -d' ' -f1 /proc/uptime) >> {ticks}; sleep 0.05; done",
        gate=GATE, ticks=f"{TICKS}-{ctx.job.name}",
    )

@job(runs_on="linux", retry_on_infra=Retry(5, delay="0.1s"))
async def again(ctx: Ctx) -> None:
    await tick(ctx)

@job(runs_on="linux")
async def once(ctx: Ctx) -> None:
    await tick(ctx)

ci = workflow("ci", on=push(), jobs=[again, once])
"""


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedPostgres]:
    with reachable_folder(memory()) as folder:
        server = EmbeddedPostgres(Path(folder))
        await server.start()
        try:
            yield server
        finally:
            await server.stop()


def ticks(two: Replicas, job: str) -> dict[int, list[float]]:
    """Attempt → when it was seen to run, by the clock of the host."""
    found: dict[int, list[float]] = {}
    with contextlib.suppress(FileNotFoundError):
        for line in (two.base / f"ticks-{job}").read_text().splitlines():
            attempt, at = line.split(" ")
            found.setdefault(int(attempt), []).append(float(at))
    return found


async def begun(two: Replicas) -> str:
    """A run whose two jobs tick."""
    workflow = f"GATE = {str(two.base / 'gate')!r}\nTICKS = {str(two.base / 'ticks')!r}\n{WORKFLOW}"
    run_id: str = (await two.run_of(await two.push(await two.repository(workflow))))["runId"]

    async def both() -> bool | None:
        return bool(ticks(two, "again") and ticks(two, "once")) or None

    await two.until(both, "both jobs to run", 60)
    return run_id


async def outlast(two: Replicas, began: float) -> None:
    """The outage goes on, and `again` is dead before its end."""
    await asyncio.sleep(max(0.0, LONGER_S - (time.monotonic() - began)))
    assert list(ticks(two, "again")) == [1]
    assert uptime() - ticks(two, "again")[1][-1] > 5
    assert uptime() - ticks(two, "once")[1][-1] < 1


async def ends_well(two: Replicas, run_id: str) -> None:
    """Afterwards: the second attempt ran after the first, and what had no second one succeeded with the first."""
    (two.base / "gate").touch()
    run = await two.ended(run_id, deadline=90)
    jobs = await two.jobs(run_id)
    assert run["status"] == "success", jobs
    assert jobs["once"]["attempt"] == 1
    assert list(ticks(two, "once")) == [1]
    assert jobs["again"]["attempt"] >= 2
    seen = ticks(two, "again")
    for before, after in zip(sorted(seen), sorted(seen)[1:], strict=False):
        assert seen[before][-1] < seen[after][0]


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split(" ")[0])


@pytest.mark.proof
async def test_behind_a_cut_cable_the_retryable_job_is_killed_before_its_next_attempt_starts(database_url: str) -> None:
    async with replicas.running(database_url) as two:
        first, second = two.coordinators
        async with Cable(first.port) as cable:
            await two.agent("cut", cable.port, slots=2)
            run_id = await begun(two)
            cable.pull()
            two.use(second)
            await two.agent("other", second.port)

            async def next_attempt() -> bool | None:
                return 2 in ticks(two, "again") or None

            await two.until(next_attempt, "the next attempt", 40)
            seen = ticks(two, "again")
            assert seen[2][0] - seen[1][-1] > 4  # the margin is 5 s, and a tick 0.05 s
            assert uptime() - ticks(two, "once")[1][-1] < 1
            assert (await two.jobs(run_id))["once"]["status"] == "recovering"
            cable.mend()
            await ends_well(two, run_id)


@pytest.mark.proof
async def test_while_all_coordinators_are_away_nothing_is_lost(database_url: str) -> None:
    async with replicas.running(database_url) as two:
        await two.agent("alone", two.coordinators[0].port, slots=2)
        run_id = await begun(two)
        began = time.monotonic()
        for one in two.coordinators:
            await one.kill()
        await outlast(two, began)
        for one in two.coordinators:
            await one.start()
        await ends_well(two, run_id)


@pytest.mark.proof
@pytest.mark.parametrize("how", ["stopped", "frozen"])
async def test_while_the_database_is_away_nothing_is_lost(server: EmbeddedPostgres, how: str) -> None:
    async with replicas.running(server.url) as two:
        await two.agent("alone", two.coordinators[0].port, slots=2)
        run_id = await begun(two)
        began = time.monotonic()
        if how == "stopped":
            await server.stop()
        else:
            processes(server, signal.SIGSTOP)
        try:
            await outlast(two, began)
        finally:
            if how == "frozen":
                processes(server, signal.SIGCONT)
        if how == "stopped":
            await server.start()
        await ends_well(two, run_id)


@pytest.mark.proof
async def test_while_the_database_is_frozen_the_api_says_so_and_afterwards_everything_goes_on(
    server: EmbeddedPostgres,
) -> None:
    async with replicas.running(server.url, count=1) as one:
        here = one.coordinators[0]
        await one.agent("steady", here.port, slots=2)
        run_id = await begun(one)
        processes(server, signal.SIGSTOP)
        try:
            for _ in range(12):  # as many as there are connections, and more
                answer = await one.http.get(f"{one.url}/api/v1/admin/runs", timeout=9)
                assert answer.status_code == 503, answer.text
                if (await one.http.get(f"{one.url}/ready", timeout=9)).json()["checks"]["lease"] is False:
                    break
            assert (await one.http.get(f"{one.url}/health")).status_code == 200
        finally:
            processes(server, signal.SIGCONT)
        await here.ready(one.http, patience_s=20)
        (one.base / "gate").touch()
        assert (await one.ended(run_id, deadline=60))["status"] == "success"


def processes(server: EmbeddedPostgres, number: signal.Signals) -> None:
    """Signal the server and all that it has started."""
    assert server.pid
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    for pid in (server.pid, *map(int, children)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
