"""Log chunks of running and just ended steps, and what becomes of them.

Chunks lie in partitions by the hour in which their attempt was accepted (`execution_jobs.log_hour`), so that a chunk
that is sent twice meets its twin. A step's log is *closed* when it was compacted (`execution_steps.log_lines` is set):
from then on no chunk is stored, and its chunks leave with their whole partition.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from msgspec import Struct

from kici.orchestrator.store.database import Db

StepRef: TypeAlias = tuple[str, int, int]
"""job id, attempt, step index"""

HOUR = timedelta(hours=1)


class Sent(Struct, frozen=True):
    """A chunk as it came."""

    session_id: str
    job_id: str
    attempt: int
    step_index: int
    sequence: int
    first_line: int
    lines: int
    data: bytes


class Chunk(Struct, frozen=True):
    sequence: int
    first_line: int
    lines: int
    data: bytes


class Extent(Struct, frozen=True):
    """How far a step's chunks reach without a gap."""

    chunks: int
    lines: int


class Step(Struct, frozen=True):
    """A step as its log sees it."""

    id: str
    run_id: str
    job_id: str
    """Of the job that ran it: what its chunks are filed under."""
    shown_job_id: str
    """Of the job in this run; another one where a rerun reuses that job."""
    job_name: str
    attempt: int
    step_index: int
    step_name: str
    status: str
    began: bool
    ended_at: datetime | None
    log_chunks: int | None
    """How many the agent said there are; None = it has not, or could not."""
    log_path: str | None
    log_lines: int | None
    """None = open."""
    log_hour: datetime | None
    """Of the attempt; None = not known, look everywhere."""


_STEP = """
  s.id, j.run_id, s.job_id, j.job_id as shown_job_id, j.job_name, s.attempt, s.step_index, s.step_name, s.status,
  s.started_at is not null as began, s.completed_at as ended_at, s.log_chunks, s.log_path, s.log_lines,
  case when j.attempt = s.attempt then j.log_hour end as log_hour
"""


async def append(db: Db, sent: Sequence[Sent]) -> list[str | None]:
    """Store what may be stored, in one statement. Returns for each chunk None, or the reason for which it is refused.

    A chunk is taken if its attempt is the job's current one, the session is of the agent that has it, and the step's
    log is open. The lock that keeps it open until the commit is the weakest one: it stops only `hold_to_close`. A step
    without a row (preparation, before its first status) is open; it is closed only by the number of its chunks, so it
    needs no lock. A chunk that is there already is left as it is. Rows go in in the order of their key, so that two
    coordinators with the same chunks do not block each other.

    Raises `asyncpg.CheckViolationError` where the partition of an hour is missing; then nothing is stored.
    """
    rows = await db.fetch(
        """
        with sent as materialized (
          select * from unnest($1::uuid[], $2::uuid[], $3::int[], $4::int[]) with ordinality
                     as r (session_id, job_id, attempt, step_index, number)
        ),
        jobs as materialized (
          select job_id, attempt, agent_id, log_hour from execution_jobs
           where job_id in (select job_id from sent)
        ),
        owners as materialized (
          select id, agent_id from agent_sessions where id in (select session_id from sent)
        ),
        steps as materialized (
          select s.job_id, s.attempt, s.step_index, s.log_lines is not null as closed
            from (select distinct job_id, attempt, step_index from sent) r
            join execution_steps s on s.job_id = r.job_id and s.attempt = r.attempt and s.step_index = r.step_index
           order by s.id for key share of s
        ),
        judged as materialized (
          select sent.number, jobs.log_hour,
                 case when jobs.log_hour is null
                      then 'there is no job ' || sent.job_id || ' that has begun'
                      when sent.attempt <> jobs.attempt
                      then 'attempt ' || sent.attempt || ' is over: the job is at attempt ' || jobs.attempt
                      when jobs.agent_id is null or owners.agent_id is distinct from jobs.agent_id
                      then 'another agent has this job'
                      when steps.closed then 'the log of this step is closed' end as problem
            from sent
            left join jobs on jobs.job_id = sent.job_id
            left join owners on owners.id = sent.session_id
            left join steps on steps.job_id = sent.job_id and steps.attempt = sent.attempt
                           and steps.step_index = sent.step_index
        ),
        stored as (
          insert into log_chunks (log_hour, job_id, attempt, step_index, sequence, first_line, lines, bytes)
          select judged.log_hour, c.job_id, c.attempt, c.step_index, c.sequence, c.first_line, c.lines, c.bytes
            from unnest($2::uuid[], $3::int[], $4::int[], $5::int[], $6::int[], $7::int[], $8::bytea[])
                   with ordinality as c (job_id, attempt, step_index, sequence, first_line, lines, bytes, number)
            join judged on judged.number = c.number
           where judged.problem is null
           order by c.job_id, c.attempt, c.step_index, c.sequence
          on conflict (job_id, attempt, step_index, sequence, log_hour) do nothing
        )
        select problem from judged order by number
        """,
        [chunk.session_id for chunk in sent],
        [chunk.job_id for chunk in sent],
        [chunk.attempt for chunk in sent],
        [chunk.step_index for chunk in sent],
        [chunk.sequence for chunk in sent],
        [chunk.first_line for chunk in sent],
        [chunk.lines for chunk in sent],
        [chunk.data for chunk in sent],
    )
    return [row["problem"] for row in rows]


async def hours_of(db: Db, job_ids: Collection[str]) -> list[datetime]:
    """In whose partitions the chunks of these jobs lie."""
    rows = await db.fetch(
        "select distinct log_hour from execution_jobs where job_id = any($1::uuid[]) and log_hour is not null",
        list(job_ids),
    )
    return [row["log_hour"] for row in rows]


async def step(db: Db, job_id: str, step_index: int, attempt: int | None = None) -> Step | None:
    """One step of a job, of the current attempt unless told otherwise."""
    row = await db.fetchrow(
        f"""
        select {_STEP} from execution_jobs j join execution_steps s on s.job_id = coalesce(j.reused_from, j.job_id)
         where j.job_id = $1 and s.step_index = $2 and s.attempt = coalesce($3::int, greatest(j.attempt, 1))
        """,  # noqa: S608 - constants
        job_id,
        step_index,
        attempt,
    )
    return None if row is None else Step(**row)


async def step_by_id(db: Db, step_id: str) -> Step | None:
    row = await db.fetchrow(
        f"select {_STEP} from execution_steps s join execution_jobs j on j.job_id = s.job_id where s.id = $1",  # noqa: S608
        step_id,
    )
    return None if row is None else Step(**row)


async def steps_of_run(db: Db, run_id: str, job_ids: Collection[str] | None = None) -> list[Step]:
    """Steps of the current attempt of each job, or of some jobs, in the order in which a person reads them."""
    rows = await db.fetch(
        f"""
        select {_STEP} from execution_jobs j join execution_steps s on s.job_id = coalesce(j.reused_from, j.job_id)
         where j.run_id = $1 and s.attempt = greatest(j.attempt, 1)
           and ($2::uuid[] is null or j.job_id = any($2::uuid[]))
         order by j.position, j.job_id, s.step_index
        """,  # noqa: S608 - constants
        run_id,
        None if job_ids is None else list(job_ids),
    )
    return [Step(**row) for row in rows]


async def extent(db: Db, step: Step) -> Extent:
    row = await db.fetchrow(
        f"""
        select count(*)::int as chunks, coalesce(max(first_line + lines), 0)::int as lines
          from (select sequence, first_line, lines, row_number() over (order by sequence) - 1 as place
                  from log_chunks where {_of(step)}) numbered
         where sequence = place
        """,  # noqa: S608 - constants
        *_values(step),
    )
    assert row is not None
    return Extent(**row)


async def chunks_with_lines(db: Db, step: Step, first_line: int, end_line: int, limit: int) -> list[Chunk]:
    """Up to `limit` chunks with some of these lines (end exclusive), by sequence. There may be gaps between them."""
    rows = await db.fetch(
        f"""
        select sequence, first_line, lines, bytes as data from log_chunks
         where {_of(step)} and first_line + lines > $5 and first_line < $6
         order by sequence limit $7
        """,  # noqa: S608 - constants
        *_values(step),
        first_line,
        end_line,
        limit,
    )
    return [Chunk(**row) for row in rows]


async def chunks_from(db: Db, step: Step, sequence: int, limit: int) -> list[Chunk]:
    """Up to `limit` chunks from this sequence number on. There may be gaps between them."""
    rows = await db.fetch(
        f"""
        select sequence, first_line, lines, bytes as data from log_chunks
         where {_of(step)} and sequence >= $5 order by sequence limit $6
        """,  # noqa: S608 - constants
        *_values(step),
        sequence,
        limit,
    )
    return [Chunk(**row) for row in rows]


async def count(db: Db, step: Step) -> int:
    """All chunks that are there, with gaps or without."""
    return int(await db.fetchval(f"select count(*) from log_chunks where {_of(step)}", *_values(step)))  # noqa: S608


async def hold_to_close(db: Db, step_id: str) -> bool:
    """Lock the step against its log's writers. False: the log is closed already."""
    return bool(await db.fetchval("select log_lines is null from execution_steps where id = $1 for update", step_id))


async def close(db: Db, step_id: str, *, path: str | None, lines: int, size: int) -> None:
    await db.execute(
        "update execution_steps set log_path = $2, log_lines = $3, log_bytes = $4 where id = $1",
        step_id,
        path,
        lines,
        size,
    )


# ── partitions ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def create_partition(db: Db, hour: datetime) -> None:
    """Make the partition of this hour if it is not there. Safe from many coordinators at once.

    The table is made alone and then attached: that leaves readers and writers of the other partitions undisturbed.
    """
    name = _partition(hour)
    begin = hour.astimezone(UTC)
    await db.execute("select pg_advisory_xact_lock(hashtextextended('kici.log_chunks', 0))")
    if await db.fetchval("select to_regclass($1)", name) is None:
        await db.execute(f"create table {name} (like log_chunks including defaults)")
        await db.execute(
            f"alter table log_chunks attach partition {name}"
            f" for values from ('{begin.isoformat()}') to ('{(begin + HOUR).isoformat()}')"
        )


async def partitions(db: Db) -> list[datetime]:
    """The hours that have a partition, oldest first."""
    rows = await db.fetch(
        "select inhrelid::regclass::text as name from pg_inherits where inhparent = 'log_chunks'::regclass"
    )
    return sorted(
        datetime.strptime(row["name"].rpartition(".")[2], "log_chunks_%Y%m%d%H").replace(tzinfo=UTC) for row in rows
    )


async def hour_is_closed(db: Db, hour: datetime) -> bool:
    """Whether every step with a chunk in this hour's partition is closed, or can never be read again."""
    return bool(
        await db.fetchval(
            f"""
            select not exists (
              select from (select distinct job_id, attempt, step_index from {_partition(hour)}) c
                join execution_jobs j on j.job_id = c.job_id
                left join execution_steps s
                  on s.job_id = c.job_id and s.attempt = c.attempt and s.step_index = c.step_index
               where s.log_lines is null and (s.id is not null or (c.attempt = j.attempt and j.completed_at is null)))
            """  # noqa: S608 - a name made of digits
        )
    )


async def forgotten(db: Db, hour: datetime) -> list[str]:
    """Ids of ended steps with chunks in this hour whose log is open and that nobody was asked to compact."""
    rows = await db.fetch(
        f"""
        select s.id
          from (select distinct job_id, attempt, step_index from {_partition(hour)}) c
          join execution_jobs j on j.job_id = c.job_id
          join execution_steps s on s.job_id = c.job_id and s.attempt = c.attempt and s.step_index = c.step_index
         where s.log_lines is null
           and (s.completed_at is not null or j.completed_at is not null or j.attempt > s.attempt)
           and not exists (select from outbox o where o.kind = 'compact_log' and o.target = s.id::text)
        """  # noqa: S608 - a name made of digits
    )
    return [row["id"] for row in rows]


async def drop_partition(db: Db, hour: datetime, *, wait_ms: int = 200) -> None:
    """Drop the partition whole. Raises `asyncpg.LockNotAvailableError` rather than hold up the log's writers."""
    await db.execute(f"set local lock_timeout = '{wait_ms:d}ms'")
    await db.execute(f"drop table {_partition(hour)}")


def _partition(hour: datetime) -> str:
    return f"log_chunks_{hour.astimezone(UTC):%Y%m%d%H}"


def _of(step: Step) -> str:
    """Condition on `log_chunks`; with the hour, if it is known, one partition is looked at instead of all."""
    hour = "$4::timestamptz is null" if step.log_hour is None else "log_hour = $4::timestamptz"
    return f"job_id = $1 and attempt = $2 and step_index = $3 and {hour}"


def _values(step: Step) -> tuple[str, int, int, datetime | None]:
    return step.job_id, step.attempt, step.step_index, step.log_hour
