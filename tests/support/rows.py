"""Rows of runs, jobs and steps, for tests that need some to be there."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

import zstandard
from asyncpg import Pool, Record
from msgspec import Struct

from kici.wire.agent import LogChunk


class Job(Struct, frozen=True):
    run_id: str
    job_id: str
    agent_id: str
    session_id: str
    step_ids: tuple[str, ...]


async def add_run(pool: Pool[Record], *, status: str = "running", **columns: Any) -> str:
    values = {
        "run_id": str(uuid.uuid4()),
        "workflow_name": "ci",
        "status": status,
        "provider": "local",
        "repo_identifier": "local/demo",
        "ref": "refs/heads/main",
        "sha": "a" * 40,
        "workflow_sha": "a" * 40,
        "event": {"type": "push", "branch": "main"},
        **columns,
    }
    await _insert(pool, "execution_runs", values)
    return str(values["run_id"])


async def add_session(pool: Pool[Record], agent_id: str = "agent-1", **columns: Any) -> str:
    values = {
        "id": str(uuid.uuid4()),
        "agent_id": agent_id,
        "boot_id": "boot",
        "coordinator": "here",
        "protocol": 1,
        "labels": ["kici:os:linux"],
        "slots": 2,
        **columns,
    }
    await _insert(pool, "agent_sessions", values)
    return str(values["id"])


async def add_job(
    pool: Pool[Record],
    run_id: str,
    *,
    name: str = "build",
    status: str = "running",
    steps: tuple[str, ...] = ("compile",),
    step_status: str = "running",
    attempt: int = 1,
    position: int = 0,
    log_hour: datetime | None = None,
    **columns: Any,
) -> Job:
    """A job that `agent-1` has accepted under a session of its own."""
    session_id = await add_session(pool)
    job_id = str(uuid.uuid4())
    hour = log_hour or await pool.fetchval("select date_trunc('hour', now())")
    await _insert(
        pool,
        "execution_jobs",
        {
            "run_id": run_id,
            "job_id": job_id,
            "job_name": name,
            "base_job_name": name.split(" ")[0],
            "position": position,
            "status": status,
            "attempt": attempt,
            "session_id": session_id,
            "definition": {},
            "agent_id": "agent-1",
            "log_hour": hour,
            **columns,
        },
    )
    step_ids = []
    for index, step in enumerate(steps):
        step_ids.append(await add_step(pool, run_id, job_id, index, step, status=step_status, attempt=attempt))
    return Job(run_id, job_id, "agent-1", session_id, tuple(step_ids))


async def add_step(
    pool: Pool[Record], run_id: str, job_id: str, index: int, name: str, *, status: str = "running", attempt: int = 1
) -> str:
    step_id = str(uuid.uuid4())
    await _insert(
        pool,
        "execution_steps",
        {
            "id": step_id,
            "run_id": run_id,
            "job_id": job_id,
            "attempt": max(1, attempt),
            "step_index": index,
            "step_name": name,
            "status": status,
            "started_at": await pool.fetchval("select now()") if status != "pending" else None,
        },
    )
    return step_id


async def add_queue_row(
    pool: Pool[Record], job: Job, *, token_hash: str | None = None, claimed: bool = True, name: str = "build"
) -> None:
    labels = await pool.fetchval(
        """
        insert into label_sets (key, labels, excludes) values ('linux', '{kici:os:linux}', '{}')
        on conflict (key) do update set key = excluded.key returning id
        """
    )
    await _insert(
        pool,
        "dispatch_queue",
        {
            "id": job.job_id,
            "run_id": job.run_id,
            "workflow_name": "ci",
            "job_name": name,
            "repository": "local/demo",
            "label_set_id": labels,
            "sort_key": 0.0,
            "attempt": 1 if claimed else 0,
            "session_id": job.session_id if claimed else None,
            "job_token_hash": token_hash,
            "accepted_at": await pool.fetchval("select now()") if claimed else None,
        },
    )


async def end_step(pool: Pool[Record], step_id: str, *, chunks: int | None, status: str = "success") -> None:
    await pool.execute(
        "update execution_steps set status = $2, completed_at = now(), log_chunks = $3 where id = $1",
        step_id,
        status,
        chunks,
    )


def chunk(
    job: Job, sequence: int, lines: list[str], *, first_line: int, step_index: int = 0, attempt: int = 1
) -> LogChunk:
    return LogChunk(
        job_id=job.job_id,
        attempt=attempt,
        step_index=step_index,
        sequence=sequence,
        first_line=first_line,
        lines=len(lines),
        data=zstandard.ZstdCompressor().compress("".join(f"{line}\n" for line in lines).encode()),
    )


def chunked(job: Job, lines: list[str], size: int, *, step_index: int = 0, attempt: int = 1) -> list[LogChunk]:
    """The lines as an agent sends them, `size` in a chunk."""
    return [
        chunk(job, number, lines[at : at + size], first_line=at, step_index=step_index, attempt=attempt)
        for number, at in enumerate(range(0, len(lines), size))
    ]


async def _insert(pool: Pool[Record], table: str, values: dict[str, Any]) -> None:
    places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
    await pool.execute(f"insert into {table} ({', '.join(values)}) values ({places})", *values.values())
