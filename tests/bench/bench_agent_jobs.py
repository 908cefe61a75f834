"""What an agent adds to a job, and a runner to a step; the orchestrator is played, everything else is real.

- `job_overhead_ms`: from sending the dispatch of a job with one trivial step to hearing its end, sandbox on, the slot
  free for a while. The floor, in turn with it: plain git fetches one commit of the same repository over the same HTTP
  address and checks it out, then bubblewrap starts `true`.
- `jobs_per_s_one_slot`: such jobs one after the other through one slot, each sent when the end of the one before was
  heard, beside 1 ÷ that floor.
- `step_overhead_ms`: per trivial command step, of a job with many, beside starting `bash -c true` and waiting for it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from kici.agent import mirror_places
from kici.agent.sandbox.bubblewrap import find_bwrap
from kici.engine.events import Event, EventType
from kici.wire.agent import Checkout, Dispatch, StepStatusChanged
from kici.wire.context import JobContext
from tests.bench.bench_first_step import BOX
from tests.bench.harness import Result, compare
from tests.support import agent_process
from tests.support.agent_orchestrator import Orchestrator
from tests.support.agent_process import AgentProcess
from tests.support.kici_repository import KiciRepository
from tests.support.web import Web

NAMES = ("job_overhead_ms", "jobs_per_s_one_slot", "step_overhead_ms")
WARM_UP = 2
SAMPLES = 15
IN_A_ROW = 6
ROWS = 7
STEPS = 60
JOB_S = 120.0
"""No job takes that long."""
COMMANDS = {"one": ["true"], "many": ["true"] * STEPS}


def run() -> list[Result]:
    return asyncio.run(measure({}))


async def measure(env: Mapping[str, str]) -> list[Result]:
    async with opened(env) as place:
        return [*await place.jobs(), await place.steps()]


@asynccontextmanager
async def opened(
    env: Mapping[str, str], *, fill: Callable[[KiciRepository], object] = lambda repository: None
) -> AsyncIterator[Place]:
    """`fill` puts more into the repository."""
    base = Path(tempfile.mkdtemp(prefix="kici-bench-"))
    base.chmod(0o755)
    try:
        repository = KiciRepository(base / "repositories" / "repo", COMMANDS)
        fill(repository)
        with Web(base / "repositories").running() as web:
            async with (
                Orchestrator().running() as orchestrator,
                agent_process.running(base, orchestrator.url, {"KICI_SANDBOX": "true", **env}) as agent,
            ):
                yield Place(base, web, repository, orchestrator, agent)
    finally:
        shutil.rmtree(base, ignore_errors=True)


class Place:
    def __init__(
        self, base: Path, web: Web, repository: KiciRepository, orchestrator: Orchestrator, agent: AgentProcess
    ) -> None:
        self._base = base
        self._repository = repository
        self._orchestrator = orchestrator
        orchestrator.deadline_s = JOB_S
        self._agent = agent
        self._url = f"{web.url}/git/repo/.git"
        self._sha = repository.sha
        self._lock_sha256 = repository.lock_sha256

    async def jobs(self) -> list[Result]:
        floors, ones, rows = [], [], []
        for number in range(WARM_UP + SAMPLES):
            floor = await asyncio.to_thread(self.floor)
            # Until the agent has come to rest: the runner of the next job stands.
            await asyncio.sleep(0.3)
            one = await self.job("one")
            if number >= WARM_UP:
                floors.append(floor)
                ones.append(one)
        row_floors = []
        for number in range(1 + ROWS):
            floor = await asyncio.to_thread(self.floor)
            row = [await self.job("one") for _ in range(IN_A_ROW)]
            if number:
                row_floors.append(1_000 / floor)
                rows.append(1_000 / statistics.mean(row))
        name = "git fetch + checkout + bwrap true"
        return [
            compare("job_overhead_ms", ones, name, floors, limit=3),
            compare("jobs_per_s_one_slot", rows, f"1 ÷ ({name})", row_floors, limit=0.33, unit="/s", at_least=True),
        ]

    async def steps(self) -> Result:
        values, floors = [], []
        for _ in range(7):
            floors.append(await asyncio.to_thread(_spawn_bash))
            values.append(await self._many())
        return compare("step_overhead_ms", values[1:], "posix_spawn + wait of bash -c true", floors[1:], limit=3)

    async def _many(self) -> float:
        """Milliseconds per step, the first one left out: the module is imported in it."""
        job = str(uuid.uuid4())
        await self.job("many", job)
        told = self._orchestrator.bodies(StepStatusChanged, job_id=job)
        first, last = (
            next(one.at_ms for one in told if one.step_index == index and one.status == "success")
            for index in (0, STEPS - 1)
        )
        return (last - first) / (STEPS - 1)

    async def job(self, name: str, job: str = "") -> float:
        """Milliseconds from its dispatch to its end."""
        dispatch = self._dispatch(name, job or str(uuid.uuid4()))
        started = time.perf_counter()
        await self._orchestrator.send(dispatch)
        ended = await self._orchestrator.end(dispatch.job_id)
        took = (time.perf_counter() - started) * 1_000
        if ended.status != "success":
            raise RuntimeError(f"the job ended as {ended.status}: {ended.error}\n{self._agent.log()}")
        return took

    def forget(self) -> None:
        """As if no job had been here. Between two jobs."""
        shutil.rmtree(self._base / "work" / mirror_places.NAME, ignore_errors=True)

    async def rest(self) -> None:
        """Until what the jobs have left is removed, which agents do beside other jobs."""
        trash = self._base / "work" / "trash"
        async with asyncio.timeout(JOB_S):
            while trash.exists() and any(trash.iterdir()):
                await asyncio.sleep(0.1)  # another process removes it, which tells nobody

    def _dispatch(self, name: str, job: str) -> Dispatch:
        event = Event(EventType.PUSH, branch="main", sha=self._sha, repo="me/repo")
        return Dispatch(
            run_id="run",
            job_id=job,
            attempt=1,
            workflow="ci",
            job=name,
            name=name,
            checkout=Checkout(self._url, self._sha, self._sha),
            lock_sha256=self._lock_sha256,
            job_token="kjt_" + "fedcba9876543210" * 4,
            context=JobContext("run", job, 1, "ci", name, name, event),
        )

    def floor(self) -> float:
        directory = Path(tempfile.mkdtemp(prefix="floor-", dir=self._base))

        def call(*argv: str) -> None:
            subprocess.run(argv, cwd=directory, check=True, capture_output=True)

        try:
            call("git", "init", "-q", ".")
            started = time.perf_counter()
            call("git", "fetch", "-q", "--depth=1", "--no-tags", self._url, self._sha)
            call("git", "checkout", "-q", "--detach", self._sha)
            call(find_bwrap(), *BOX)
            return (time.perf_counter() - started) * 1_000
        finally:
            shutil.rmtree(directory)


def _spawn_bash() -> float:
    """Milliseconds, mean of as many as the job has steps."""
    started = time.perf_counter()
    for _ in range(STEPS):
        os.waitpid(os.posix_spawn("/bin/bash", ["bash", "-c", "true"], os.environ), 0)
    return (time.perf_counter() - started) * 1_000 / STEPS
