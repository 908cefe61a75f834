"""The database as the model sees it: everything that can be observed at one moment, and the passing of time."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec
import psycopg
from msgspec import Struct
from psycopg.rows import dict_row

from kici.engine.lifecycle import TERMINAL_JOB, TERMINAL_RUN, JobStatus, RunStatus
from kici.engine.needs import Need
from tests.integration.model.lives import PATIENCE_S

T = TypeVar("T")


class Run(Struct, frozen=True):
    run_id: str
    event_id: str | None
    status: RunStatus
    cancelled_by: str | None

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL_RUN


class Job(Struct, frozen=True):
    job_id: str
    run_id: str
    job_name: str
    base_job_name: str
    status: JobStatus
    attempt: int
    session_id: str | None
    error: str
    timed_out: bool
    begun: bool
    """User code of the attempt."""
    attempts: int
    """How many its author allows where a machine is lost in the midst of user code."""
    steps: int
    recovery_due: bool
    report_due: bool
    cancel_due: bool
    wave_max_parallel: int | None
    wave_fail_fast: bool
    wave_gated: bool
    concurrency_group: str | None
    reused_from: str | None

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL_JOB


class Row(Struct, frozen=True):
    """Of the queue."""

    job_id: str
    attempt: int
    session_id: str | None
    accepted: bool
    ack_due: bool
    rejections: int


class Session(Struct, frozen=True):
    id: str
    agent_id: str
    coordinator: str
    lost: bool
    closed: bool


class Holder(Struct, frozen=True):
    """Of a slot in a concurrency group, or waiting for one."""

    group_key: str
    routing_key: str
    run_id: str
    job_id: str | None
    status: str
    max_active: int
    arrival: int


class Delivery(Struct, frozen=True):
    event_id: str
    delivery_id: str
    status: str


class Snapshot(Struct, frozen=True):
    runs: Mapping[str, Run]
    jobs: Mapping[str, Job]
    rows: Mapping[str, Row]
    sessions: Mapping[str, Session]
    needs: Mapping[str, list[Need]]
    holders: list[Holder]
    deliveries: Mapping[str, Delivery]
    """By delivery id."""
    steps: Mapping[tuple[str, int, int], str]
    """(job, attempt, index) → status"""
    uncompacted: list[str]
    """Steps that have begun and ended, of which no compaction is due."""

    def jobs_of(self, run_id: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.run_id == run_id]

    @property
    def quiet(self) -> bool:
        """Nothing is left to do."""
        return all(run.ended for run in self.runs.values()) and all(
            delivery.status != "received" for delivery in self.deliveries.values()
        )


EMPTY = Snapshot({}, {}, {}, {}, {}, [], {}, {}, [])

_EXPIRE = {
    # which rows, what is moved into the past, and whom that concerns
    "acknowledgements": ("dispatch_queue", "ack_deadline is not null", ("ack_deadline",), "id"),
    "waits": ("dispatch_queue", "session_id is null", ("expires_at",), "id"),
    "delays": ("dispatch_queue", "not_before > now()", ("not_before",), "id"),
    "recoveries": (
        "execution_jobs",
        "status = 'recovering' and recovery_deadline is not null",
        ("recovery_deadline", "report_deadline"),
        "(select s.agent_id from agent_sessions s where s.id = session_id)",
    ),
    "reports": (
        "execution_jobs",
        "status = 'recovering' and recovery_deadline is null",
        ("report_deadline",),
        "job_id",
    ),
    "cancellations": ("execution_jobs", "cancel_deadline is not null", ("cancel_deadline",), "job_id"),
    "jobs": ("execution_jobs", "deadline is not null and status = 'running'", ("deadline",), "job_id"),
    "runs": ("execution_runs", "deadline is not null and status in ('pending', 'running')", ("deadline",), "run_id"),
    "lost sessions": ("agent_sessions", "lost_at is not null", ("lost_at",), "id"),
    "event claims": ("event_log", "status = 'received'", ("next_attempt_at",), "id"),
    "the leader's lease": ("leases", "true", ("expires_at",), "name"),
}
DEADLINES = tuple(_EXPIRE)


class Database:
    def __init__(self, url: str) -> None:
        self.url = url
        self._db = psycopg.connect(url, autocommit=True, row_factory=dict_row)

    def close(self) -> None:
        self._db.close()

    def clear(self) -> None:
        """Empty, once nobody is at work any more."""
        give_up_at = time.monotonic() + PATIENCE_S
        while self._others():
            assert time.monotonic() < give_up_at, "somebody is still connected"
            time.sleep(0.005)
        self._db.execute(
            """
            truncate event_log, event_payloads, execution_runs, execution_jobs, execution_job_needs, execution_steps,
                     dispatch_queue, agent_sessions, coordinators, leases, outbox, concurrency_groups cascade
            """
        )

    def _others(self) -> bool:
        found = self._db.execute(
            "select true from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        )
        return found.fetchone() is not None

    def expire(self, what: str, *, tenths: int = 10, salt: str = "") -> set[str]:
        """A deadline passes, for everybody or for some. Returns whom: ids of jobs or runs, names of agents."""
        table, where, columns, key = _EXPIRE[what]
        past = ", ".join(f"{column} = now() - interval '1 h'" for column in columns)
        done = self._db.execute(
            f"""
            update {table} set {past} where {where} and abs(hashtext({key}::text || %s)) %% 10 < %s
            returning {key}::text as touched
            """,
            [salt, tenths],
        )
        return {row["touched"] for row in done.fetchall()}

    def lapse(self, instances: Collection[str]) -> None:
        """The leases of these coordinators run out."""
        self._db.execute(
            "update coordinators set lease_expires_at = now() - interval '1 s' where instance = any(%s)",
            [list(instances)],
        )

    def deadlocks(self) -> int:
        found = self._db.execute("select deadlocks from pg_stat_database where datname = current_database()").fetchone()
        assert found
        return int(found["deadlocks"])

    def look(self) -> Snapshot:
        """One consistent moment."""
        with self._db.transaction():
            self._db.execute("set transaction isolation level repeatable read read only")
            runs = self._all("select run_id::text, event_id::text, status, cancelled_by from execution_runs", Run)
            jobs = self._all(
                """
                select job_id::text, run_id::text, job_name, base_job_name, status, attempt, session_id::text,
                       coalesce(error_message, '') as error, timed_out is not null as timed_out,
                       user_code_began as begun, coalesce((retry_on_infra ->> 'attempts')::int, 1) as attempts,
                       jsonb_array_length(definition -> 'steps') as steps,
                       recovery_deadline is not null as recovery_due, report_deadline is not null as report_due,
                       cancel_deadline is not null as cancel_due, wave_max_parallel, wave_fail_fast, wave_gated,
                       concurrency_group, reused_from::text
                  from execution_jobs order by run_id, position
                """,
                Job,
            )
            rows = self._all(
                """
                select id::text as job_id, attempt, session_id::text, accepted_at is not null as accepted,
                       ack_deadline is not null as ack_due, rejections
                  from dispatch_queue
                """,
                Row,
            )
            sessions = self._all(
                """
                select id::text, agent_id, coordinator, lost_at is not null as lost, closed_at is not null as closed
                  from agent_sessions
                """,
                Session,
            )
            holders = self._all(
                """
                select group_key, routing_key, run_id::text, job_id::text, status, max_active, arrival
                  from concurrency_groups where status in ('active', 'queued') order by arrival
                """,
                Holder,
            )
            deliveries = self._all("select id::text as event_id, delivery_id, status from event_log", Delivery)
            needs = self._db.execute("select job_id::text, upstream_name, run_on from execution_job_needs").fetchall()
            steps = self._db.execute(
                """
                select s.id::text, s.job_id::text, s.attempt, s.step_index, s.status,
                       s.status not in ('pending', 'running') and s.started_at is not null
                       and not exists (select from outbox o where o.dedupe_key = 'compact_log:' || s.id)
                       and j.reused_from is null and s.log_lines is null as uncompacted
                  from execution_steps s join execution_jobs j on j.job_id = s.job_id
                """
            ).fetchall()
        return Snapshot(
            {run.run_id: run for run in runs},
            {job.job_id: job for job in jobs},
            {row.job_id: row for row in rows},
            {session.id: session for session in sessions},
            _needs(needs),
            holders,
            {delivery.delivery_id: delivery for delivery in deliveries},
            {(step["job_id"], step["attempt"], step["step_index"]): step["status"] for step in steps},
            [step["id"] for step in steps if step["uncompacted"]],
        )

    def _all(self, query: str, kind: type[T]) -> list[T]:
        return msgspec.convert(self._db.execute(query).fetchall(), list[kind])  # type: ignore[valid-type]


def _needs(rows: Collection[Mapping[str, Any]]) -> dict[str, list[Need]]:
    found: dict[str, list[Need]] = {}
    for row in rows:
        found.setdefault(row["job_id"], []).append(Need(row["upstream_name"], frozenset(row["run_on"])))
    return found
