"""What the figures under load have in common: a durable PostgreSQL, a coordinator process, agents in processes of
their own, and jobs for them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import secrets
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import httpx
import msgspec
from asyncpg import Pool, Record

from kici.engine.events import Event, EventType
from kici.engine.lockfile import LockJob, LockStep
from kici.orchestrator.store import migrate
from kici.orchestrator.store.database import create_pool
from kici.orchestrator.store.embedded import EmbeddedPostgres
from tests.support.postgres import reachable_folder, with_database

SHA = "a" * 40
LABEL = "kici:os:linux"
OPEN_FILES = 8_192
"""Sockets of thousands of agents, in this process's children too."""


@asynccontextmanager
async def server() -> AsyncIterator[str]:
    """The URL of a fresh PostgreSQL with everything on that keeps what was committed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, OPEN_FILES)), hard))
    with reachable_folder() as folder:
        embedded = EmbeddedPostgres(folder)
        url = await embedded.start()
        try:
            yield url
        finally:
            await embedded.stop()


async def database(url: str, name: str) -> str:
    """A new database on this server, without any table."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"create database {name}")
    finally:
        await connection.close()
    return with_database(url, name)


class Coordinator:
    """One `kici-orchestrator` process. `url` is where agents dial in."""

    def __init__(self, folder: Path, database_url: str, **env: str) -> None:
        self._folder = folder
        self._token = folder / "agent-token"
        self._database_url = database_url
        self._env = env
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.process: asyncio.subprocess.Process | None = None

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def url(self) -> str:
        return self.http_url.replace("http", "ws", 1) + "/ws"

    @property
    def token_file(self) -> Path:
        return self._token

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    async def start(self) -> None:
        if not self._token.exists():
            self._token.write_text(f"kat_{secrets.token_hex(32)}")
        with (self._folder / "orchestrator.log").open("ab") as output:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "kici.orchestrator.main"),
                pass_fds=(self._listener.fileno(),),
                stdout=output,
                stderr=output,
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("src")) or "src",
                    "KICI_DATABASE_URL": self._database_url,
                    "KICI_LISTEN_FD": str(self._listener.fileno()),
                    "KICI_DATA_DIR": str(self._folder),
                    "KICI_SECRET_KEY": "5" * 64,
                    "KICI_BOOTSTRAP_AGENT_TOKEN_FILE": str(self._token),
                    "KICI_DIE_WITH_PARENT": "1",
                    **self._env,
                },
            )
        async with httpx.AsyncClient() as client, asyncio.timeout(60):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get(f"{self.http_url}/health", timeout=5)).is_success:
                        return
                if self.process.returncode is not None:
                    raise RuntimeError(f"the orchestrator ended:\n{self.log()}")
                await asyncio.sleep(0.02)

    async def kill(self) -> None:
        assert self.process
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def stop(self) -> None:
        if self.process and self.process.returncode is None:
            self.process.terminate()
            try:
                async with asyncio.timeout(30):
                    await self.process.wait()
            except TimeoutError:
                await self.kill()
        self._listener.close()

    def log(self) -> str:
        return (self._folder / "orchestrator.log").read_text(errors="replace")[-4000:]


@asynccontextmanager
async def coordinator(database_url: str, **env: str) -> AsyncIterator[Coordinator]:
    with tempfile.TemporaryDirectory(prefix="kici-bench-") as folder:
        one = Coordinator(Path(folder), database_url, **env)
        try:
            await one.start()
            yield one
        finally:
            await one.stop()


class Agents:
    """A process of light agents."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.ended = 0

    async def ask(self) -> int:
        """How many jobs have ended since the process began. A message that was refused is an error."""
        said = json.loads(await self._converse(b"?\n"))
        if said["refused"]:
            raise RuntimeError(f"the orchestrator refused {len(said['refused'])} messages: {said['refused'][0]}")
        self.ended += said["ended"]
        return self.ended

    async def _converse(self, line: bytes) -> bytes:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(line)
        async with asyncio.timeout(60):
            answer = await self.process.stdout.readline()
        if not answer:
            raise RuntimeError("a process of agents has ended")
        return answer


@asynccontextmanager
async def agents(
    one: Coordinator, *, count: int, slots: int, processes: int = 2, steps: int = 1, first: int = 0
) -> AsyncIterator[list[Agents]]:
    """Connected. With no `steps` their jobs never end."""
    started: list[Agents] = []
    try:
        each = count // processes
        for number in range(processes):
            many = each + (count % processes if number == 0 else 0)
            begin = first + number * (each + count % processes)
            argv = [one.url, str(one.token_file), str(begin), str(many), str(slots), str(steps)]
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.bench.light_agents", *argv),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            started.append(Agents(process))
        for group in started:
            assert group.process.stdout
            async with asyncio.timeout(120):
                if await group.process.stdout.readline() != b"connected\n":
                    raise RuntimeError(f"the agents did not connect:\n{one.log()}")
        yield started
    finally:
        for group in started:
            if group.process.returncode is None:
                group.process.kill()
                await group.process.wait()


async def all_ended(groups: Sequence[Agents], count: int, *, patience_s: float = 120) -> None:
    """Wait until the agents have had the ends of so many jobs acknowledged."""
    deadline = time.monotonic() + patience_s
    while sum([await group.ask() for group in groups]) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {sum(group.ended for group in groups)} of {count} jobs ended")
        await asyncio.sleep(0.01)


class Backlog:
    """Runs of one job with one step, in the state of those whose job may start; `release` puts them into the queue."""

    def __init__(self, pool: Pool[Record]) -> None:
        self.pool = pool

    async def make(self, count: int) -> list[str]:
        """Returns run ids."""
        runs = [str(uuid.uuid4()) for _ in range(count)]
        jobs = [str(uuid.uuid4()) for _ in range(count)]
        event = Event(EventType.PUSH, branch="main", sha=SHA, repo="local/bench", message="a commit", actor="somebody")
        definition = LockJob(
            name="build", steps=(LockStep(name="run", command="true"),), runs_on=(LABEL,), env={"CI": "true"}
        )
        async with self.pool.acquire() as db, db.transaction():
            await db.execute(
                """
                insert into execution_runs (run_id, workflow_name, status, provider, routing_key, repo_identifier, ref,
                                            sha, workflow_sha, lock_sha256, event, clone_url, trigger_event)
                select id, 'ci', 'pending', 'internal', 'internal:local', 'local/bench', 'refs/heads/main', $2, $2, $3,
                       $4, '/git/local/bench', 'push'
                  from unnest($1::uuid[]) as id
                """,
                runs,
                SHA,
                "b" * 64,
                msgspec.to_builtins(event),
            )
            await db.execute(
                """
                insert into execution_jobs (run_id, job_id, job_name, base_job_name, position, status, definition,
                                            runs_on_labels, needs_satisfied, ready_at)
                select run_id, job_id, 'build', 'build', 0, 'queued', $3, $4, true, now()
                  from unnest($1::uuid[], $2::uuid[]) as t (run_id, job_id)
                """,
                runs,
                jobs,
                msgspec.to_builtins(definition),
                [LABEL],
            )
            await db.execute(
                """
                insert into execution_steps (run_id, job_id, attempt, step_index, step_name)
                select run_id, job_id, 1, 0, 'run' from unnest($1::uuid[], $2::uuid[]) as t (run_id, job_id)
                """,
                runs,
                jobs,
            )
        return runs

    async def release(self, runs: Sequence[str]) -> None:
        async with self.pool.acquire() as db, db.transaction():
            labels = await db.fetchval(
                """
                insert into label_sets (key, labels, excludes) values ('bench', $1, '{}')
                on conflict (key) do update set key = excluded.key returning id
                """,
                [LABEL],
            )
            await db.execute(
                """
                insert into dispatch_queue (id, run_id, workflow_name, job_name, repository, label_set_id, sort_key)
                select j.job_id, j.run_id, 'ci', 'build', 'local/bench', $2,
                       extract(epoch from now()) + row_number() over () * 1e-6
                  from execution_jobs j where j.run_id = any($1::uuid[])
                """,
                list(runs),
                labels,
            )
        await self.pool.execute("select pg_notify('kici_queue', '')")


@asynccontextmanager
async def backlog(database_url: str) -> AsyncIterator[Backlog]:
    """On a database that is migrated first."""
    await migrate.ensure(database_url)
    pool = await create_pool(database_url, 2)
    try:
        yield Backlog(pool)
    finally:
        pool.terminate()
