"""The states of steps, of each attempt of a job. Whoever writes them holds the lock of the job's row."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from kici.engine.lifecycle import StepStatus
from kici.orchestrator.store.database import Db
from kici.wire.agent import Annotation

StepKey: TypeAlias = tuple[str, int, int]
"""job id, attempt, step index"""


class StepWrite(Struct, frozen=True):
    """A step's new state. Times are milliseconds of the Unix epoch, already corrected by the agent's clock skew."""

    job_id: str
    run_id: str
    attempt: int
    step_index: int
    name: str
    status: StepStatus
    step_attempt: int = 1
    started_at_ms: int | None = None
    completed_at_ms: int | None = None
    exit_code: int | None = None
    error: str = ""
    log_chunks: int | None = None
    annotations: tuple[Annotation, ...] = ()
    """Without the character NUL; so is `summary`."""
    summary: str = ""
    reason: str = ""
    """`engine.failure.Reason`, if it did not succeed."""
    signal: str = ""
    last_lines: str = ""
    peak_memory_bytes: int | None = None


class Settled(Struct, frozen=True):
    """A step that had begun and was ended together with its job."""

    id: str
    run_id: str
    job_id: str
    attempt: int
    step_index: int


class Settlement(Struct, frozen=True):
    """What becomes of an attempt's steps that have not ended."""

    job_id: str
    attempt: int
    running: StepStatus
    pending: StepStatus
    error: str = ""
    reason: str = ""


async def states(db: Db, keys: Collection[StepKey]) -> dict[StepKey, StepStatus]:
    rows = await db.fetch(
        """
        select s.job_id, s.attempt, s.step_index, s.status
          from execution_steps s
          join unnest($1::uuid[], $2::int[], $3::int[]) as k (job_id, attempt, step_index)
            on s.job_id = k.job_id and s.attempt = k.attempt and s.step_index = k.step_index
        """,
        [job_id for job_id, _, _ in keys],
        [attempt for _, attempt, _ in keys],
        [index for _, _, index in keys],
    )
    return {(row["job_id"], row["attempt"], row["step_index"]): StepStatus(row["status"]) for row in rows}


async def write(db: Db, writes: Sequence[StepWrite]) -> dict[StepKey, str]:
    """Write states, at most one per step. Steps that the run did not know (preparation) get their row. Returns row ids.

    An agent's clock does not put anything into the future. A step that ends without a chunk has its log closed.
    """
    rows = await db.fetch(
        """
        insert into execution_steps as s
          (run_id, job_id, attempt, step_index, step_name, status, step_attempt, started_at, completed_at, duration_ms,
           exit_code, error_message, log_chunks, log_lines, annotations, summary, reason, signal, last_lines,
           peak_memory_bytes)
        select w.run_id, w.job_id, w.attempt, w.step_index, w.name, w.status, w.step_attempt,
               least(to_timestamp(w.started_at_ms / 1000.0), now()),
               least(to_timestamp(w.completed_at_ms / 1000.0), now()),
               case when w.completed_at_ms > w.started_at_ms
                    then least(w.completed_at_ms - w.started_at_ms, 2147483647)::int
                    when w.completed_at_ms <= w.started_at_ms then 0 end,
               w.exit_code, nullif(w.error, ''), w.log_chunks, case when w.log_chunks = 0 then 0 end,
               w.annotations, nullif(w.summary, ''), nullif(w.reason, ''), nullif(w.signal, ''),
               nullif(w.last_lines, ''), w.peak_memory_bytes
          from unnest($1::uuid[], $2::uuid[], $3::int[], $4::int[], $5::text[], $6::text[], $7::int[], $8::bigint[],
                      $9::bigint[], $10::int[], $11::text[], $12::int[], $13::jsonb[], $14::text[], $15::text[],
                      $16::text[], $17::text[], $18::bigint[])
            as w (run_id, job_id, attempt, step_index, name, status, step_attempt, started_at_ms, completed_at_ms,
                  exit_code, error, log_chunks, annotations, summary, reason, signal, last_lines, peak_memory_bytes)
        on conflict (run_id, job_id, attempt, step_index) do update
           set status = excluded.status, step_attempt = greatest(s.step_attempt, excluded.step_attempt),
               started_at = coalesce(excluded.started_at, s.started_at), completed_at = excluded.completed_at,
               duration_ms = coalesce(
                 excluded.duration_ms,
                 least(greatest(extract(epoch from excluded.completed_at - s.started_at), 0) * 1000, 2147483647)::int
               ),
               exit_code = excluded.exit_code, error_message = excluded.error_message, log_chunks = excluded.log_chunks,
               log_lines = coalesce(s.log_lines, excluded.log_lines),
               annotations = coalesce(excluded.annotations, s.annotations),
               summary = coalesce(excluded.summary, s.summary),
               reason = excluded.reason, signal = excluded.signal, last_lines = excluded.last_lines,
               peak_memory_bytes = excluded.peak_memory_bytes
        returning s.id, s.job_id, s.attempt, s.step_index
        """,
        [one.run_id for one in writes],
        [one.job_id for one in writes],
        [one.attempt for one in writes],
        [one.step_index for one in writes],
        [one.name for one in writes],
        [str(one.status) for one in writes],
        [one.step_attempt for one in writes],
        [one.started_at_ms for one in writes],
        [one.completed_at_ms for one in writes],
        [one.exit_code for one in writes],
        [one.error for one in writes],
        [one.log_chunks for one in writes],
        [msgspec.Raw(msgspec.json.encode(one.annotations)) if one.annotations else None for one in writes],
        [one.summary for one in writes],
        [one.reason for one in writes],
        [one.signal for one in writes],
        [one.last_lines for one in writes],
        [one.peak_memory_bytes for one in writes],
    )
    return {(row["job_id"], row["attempt"], row["step_index"]): row["id"] for row in rows}


async def begin_attempt(db: Db, attempts: Sequence[tuple[str, int]]) -> None:
    """Give each (job, attempt) its steps, pending.

    Rows of an attempt that never began move along; those of one that did stay, and the new attempt gets a copy.
    """
    job_ids = [job_id for job_id, _ in attempts]
    numbers = [attempt for _, attempt in attempts]
    await db.execute(
        """
        update execution_steps s set attempt = a.attempt
          from unnest($1::uuid[], $2::int[]) as a (job_id, attempt)
         where s.job_id = a.job_id and s.attempt < a.attempt and s.status = 'pending'
        """,
        job_ids,
        numbers,
    )
    await db.execute(
        """
        insert into execution_steps
          (run_id, job_id, attempt, step_index, step_name, step_type, continue_on_error, routing_key)
        select distinct on (s.job_id, s.step_index)
               s.run_id, s.job_id, a.attempt, s.step_index, s.step_name, s.step_type, s.continue_on_error, s.routing_key
          from unnest($1::uuid[], $2::int[]) as a (job_id, attempt)
          join execution_steps s on s.job_id = a.job_id and s.attempt < a.attempt and s.step_index >= 0
         order by s.job_id, s.step_index, s.attempt desc
        on conflict (run_id, job_id, attempt, step_index) do nothing
        """,
        job_ids,
        numbers,
    )
