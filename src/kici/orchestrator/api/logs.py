"""`/api/v1/admin/runs/{runId}/jobs/{jobId}/steps/{i}/logs`: a page of a step's log."""

from __future__ import annotations

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery

from kici.orchestrator.api import parameters
from kici.orchestrator.identity.access import Access
from kici.orchestrator.logs.reader import LogReader
from kici.wire import api

_INT4 = 2**31 - 1


def routes(access: Access, reader: LogReader) -> list[HTTPRouteHandler]:
    @get(
        "/api/v1/admin/runs/{run_id:str}/jobs/{job_id:str}/steps/{step_index:int}/logs",
        guards=[access.guard("step_log.read")],
    )
    async def step_log(
        run_id: FromPath[str],
        job_id: FromPath[str],
        step_index: FromPath[int],
        cursor: FromQuery[int] = 0,
        limit: FromQuery[int] = 500,
        attempt: FromQuery[int | None] = None,
    ) -> api.LogPage:
        """Lines from number `cursor` on; step -1 is the preparation. Of the current attempt unless told otherwise.

        `nextCursor` null: the log is complete and this is its end. The same cursor again: nothing new yet.
        """
        run, job = parameters.uuid_of(run_id, "run"), parameters.uuid_of(job_id, "job")
        parameters.within(step_index, -1, _INT4, "step")
        page = await reader.page(
            run,
            job,
            step_index,
            attempt=None if attempt is None else parameters.within(attempt, 1, _INT4, "attempt"),
            cursor=parameters.within(cursor, 0, _INT4, "cursor"),
            limit=parameters.within(limit, 1, 2000, "limit"),
        )
        return api.LogPage(run, job, step_index, page.total_lines, page.lines, page.next_cursor, page.complete)

    return [step_log]
