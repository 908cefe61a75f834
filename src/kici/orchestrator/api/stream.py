"""`/api/v1/admin/runs/{runId}/stream`: a run as it happens, as Server-sent events.

Events: `run`, `job`, `step`, with `logs=1` also `log`, and `end` last. A stream begins with the present state and all
log lines so far, so a client that lost its connection connects again and skips the lines whose numbers it has seen. A
stream that ends without `end` was interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import msgspec
import structlog
from asyncpg import Pool, Record
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, QueryParameter
from litestar.response import Stream
from msgspec import Struct

from kici.engine.lifecycle import TERMINAL_RUN, StepStatus
from kici.orchestrator.api import parameters
from kici.orchestrator.api.runs import Explain, existing, with_reasons
from kici.orchestrator.errors import OrchestratorError, Unavailable
from kici.orchestrator.identity.access import Access
from kici.orchestrator.logs.tail import Changes, RunFeed, StepTail, Watch
from kici.orchestrator.objects.contract import Objects
from kici.orchestrator.store import logs
from kici.orchestrator.store.database import is_away, transaction
from kici.orchestrator.store.views import runs
from kici.wire import api

log = structlog.get_logger(__name__)


class Settings(Struct, frozen=True):
    poll_s: float = 5.0
    """Safety net beside the notifications, and the rhythm of the comments that keep the connection alive."""
    rest_s: float = 0.05
    """Between two looks at a run, however often something changes."""
    logs_s: float = 30.0
    """How long the end of a run's stream waits for log lines that are not there yet."""
    max_streams: int = 500


class RunStream:
    def __init__(
        self, pool: Pool[Record], objects: Objects, feed: RunFeed, explain: Explain, settings: Settings
    ) -> None:
        self._pool = pool
        self._objects = objects
        self._feed = feed
        self._explain = explain
        self._settings = settings
        self._open = 0

    async def start(self, run_id: str, *, with_logs: bool) -> AsyncIterator[bytes]:
        """Raises `NotFound`, or `Unavailable` where too many streams are open; after that nothing but events."""
        async with transaction(self._pool) as db:
            await existing(db, run_id)
        if self._open >= self._settings.max_streams or self._feed.closed:
            raise Unavailable("too many streams are open here, or this orchestrator stops: try again")
        return self._events(run_id, with_logs=with_logs)

    async def _events(self, run_id: str, *, with_logs: bool) -> AsyncIterator[bytes]:
        self._open += 1
        try:
            with self._feed.watch(run_id) as watch:
                async for event in _OneRun(self, run_id, watch, with_logs=with_logs).events():
                    yield event
        except OrchestratorError as error:
            log.warning("a run's stream was interrupted", run=run_id, error=str(error))
        except Exception as error:
            if not is_away(error):
                raise
            log.warning("a run's stream was interrupted: the database is away", run=run_id)
        finally:
            self._open -= 1

    # What one stream needs of all of them.

    @property
    def settings(self) -> Settings:
        return self._settings

    def tail(self) -> StepTail:
        return StepTail(self._pool, self._objects)

    async def state(self, run_id: str) -> tuple[api.Run, list[api.Job]]:
        async with transaction(self._pool) as db:
            run = await existing(db, run_id)
            jobs = await runs.jobs(db, run_id, steps=True)
            return run, await with_reasons(db, jobs, self._explain)

    async def steps(self, run_id: str, jobs: frozenset[str] | None) -> list[logs.Step]:
        async with transaction(self._pool) as db:
            return await logs.steps_of_run(db, run_id, jobs)


class _OneRun:
    """What one client has been sent."""

    def __init__(self, streams: RunStream, run_id: str, watch: Watch, *, with_logs: bool) -> None:
        self._streams = streams
        self._run_id = run_id
        self._watch = watch
        self._with_logs = with_logs
        self._sent: dict[object, object] = {}
        self._tails: dict[str, StepTail] = {}
        self._status = ""
        self._ended_at: float | None = None

    async def events(self) -> AsyncIterator[bytes]:
        settings = self._streams.settings
        changes = Changes(unknown=True)
        while not changes.closing:
            quiet = True
            if changes.run or changes.unknown:
                for event in await self._state():
                    quiet = False
                    yield event
            if self._with_logs:
                everything = changes.run or changes.unknown
                async for event in self._lines(None if everything else changes.logs_of):
                    quiet = False
                    yield event
            if (end := await self._end()) is not None:
                yield end
                return
            if quiet:
                yield b": alive\n\n"
            await asyncio.sleep(settings.rest_s)
            changes = await self._watch.changed(self._patience())

    async def _state(self) -> list[bytes]:
        run, jobs = await self._streams.state(self._run_id)
        self._watch.follow_jobs(job.job_id for job in jobs)
        self._status = run.status
        found = list(self._news("run", run, "run"))
        for job in jobs:
            found += self._news("job", msgspec.structs.replace(job, steps=None), job.job_id)
            for step in job.steps or ():
                found += self._news(
                    "step", api.StepChanged(job.job_id, job.job_name, step), (job.job_id, step.step_index)
                )
        return found

    def _news(self, event: str, body: Any, key: object) -> Iterator[bytes]:
        if self._sent.get(key) != body:
            self._sent[key] = body
            yield encoded(event, body)

    async def _lines(self, jobs: frozenset[str] | None) -> AsyncIterator[bytes]:
        for step in await self._streams.steps(self._run_id, jobs):
            if step.status == StepStatus.PENDING:
                continue
            tail = self._tails.setdefault(step.id, self._streams.tail())
            while (new := await tail.read(step)) is not None:
                yield encoded(
                    "log",
                    api.LogLines(
                        step.shown_job_id,
                        step.job_name,
                        step.step_index,
                        step.step_name,
                        new.first_line,
                        new.lines,
                        step.attempt,
                    ),
                )

    async def _end(self) -> bytes | None:
        """The last event, once there is nothing to wait for."""
        if self._status not in TERMINAL_RUN:
            return None
        now = asyncio.get_running_loop().time()
        if self._ended_at is None:
            self._ended_at = now
        complete = all(tail.complete for tail in self._tails.values())
        if not complete and now - self._ended_at < self._streams.settings.logs_s:
            return None
        return encoded("end", api.StreamEnd(self._run_id, self._status, complete))

    def _patience(self) -> float:
        return 1.0 if self._ended_at is not None else self._streams.settings.poll_s


def encoded(event: str, body: Any) -> bytes:
    """One Server-sent event. JSON has no raw newline, so one `data` line is enough."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), msgspec.json.encode(body))


def routes(access: Access, streams: RunStream) -> list[HTTPRouteHandler]:
    @get(
        "/api/v1/admin/runs/{run_id:str}/stream",
        guards=[access.guard("run.read"), access.guard("step_log.read")],
        media_type="text/event-stream",
    )
    async def stream(
        run_id: FromPath[str], with_logs: Annotated[str | None, QueryParameter(name="logs")] = None
    ) -> Stream:
        """Server-sent events of a run; with `logs=1` also the lines of its logs."""
        events = await streams.start(parameters.uuid_of(run_id, "run"), with_logs=parameters.flag(with_logs))
        return Stream(
            events,
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    return [stream]
