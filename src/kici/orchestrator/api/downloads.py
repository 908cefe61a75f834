"""`/api/v1/agent/jobs/{id}/downloads`: the parts of an artifact or a cache entry that an attempt has found."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal

from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, FromPath, FromQuery
from litestar.response import Stream

from kici.orchestrator.api import parameters, permitted
from kici.orchestrator.api.attempts import attempt_of
from kici.orchestrator.caches import metrics, parts
from kici.orchestrator.caches.artifacts import Artifacts
from kici.orchestrator.caches.entries import Caches
from kici.orchestrator.caches.parts import URLS_AT_ONCE, Parts
from kici.orchestrator.identity.access import Access, JobPrincipal
from kici.orchestrator.store.artifacts import Artifact
from kici.orchestrator.store.caches import Entry
from kici.wire import agent_api

PATH: Final = "/api/v1/agent/jobs/{job_id:str}/downloads/{entry:str}"
Kind = Literal["artifact", "cache"]


def routes(access: Access, stored: Parts, artifacts: Artifacts, caches: Caches) -> list[HTTPRouteHandler]:
    async def found(job: JobPrincipal, attempt: int, kind: Kind, entry: str) -> Artifact | Entry:
        permitted.require(job, f"{kind}s", permitted.READ)
        if kind == "artifact":
            return await artifacts.by_id(job.run_id, parameters.uuid_of(entry, "artifact"))
        return await caches.by_id(job.job_id, attempt, parameters.uuid_of(entry, "cache entry"))

    @post(f"{PATH}/urls", status_code=200)
    async def download_urls(
        job_id: FromPath[str],
        entry: FromPath[str],
        request: Request[Any, Any, Any],
        attempt: FromQuery[int],
        kind: FromQuery[Kind],
        data: Annotated[agent_api.PartRange, Body()],
    ) -> agent_api.PartUrls:
        """Where parts come from."""
        job = await attempt_of(access, request, job_id, attempt)
        one = await found(job, attempt, kind, entry)
        first = parameters.within(data.first, 0, parts.count(one.size_bytes, parts.step_of(one)), "first")
        count = parameters.within(data.count, 1, URLS_AT_ONCE, "count")
        return agent_api.PartUrls(await stored.addresses(one, first, count))

    @get(f"{PATH}/parts/{{number:int}}")
    async def download_part(
        job_id: FromPath[str],
        entry: FromPath[str],
        number: FromPath[int],
        request: Request[Any, Any, Any],
        attempt: FromQuery[int],
        kind: FromQuery[Kind],
    ) -> Stream:
        """The bytes of one part as they lie there: whoever asks compares their number. 404: they are not there."""
        job = await attempt_of(access, request, job_id, attempt)
        one = await found(job, attempt, kind, entry)
        last = parts.count(one.size_bytes, parts.step_of(one)) - 1
        pieces = stored.read_part(one, parameters.within(number, 0, last, "part"))
        first = await anext(pieces, b"")  # before the head: what is not there is an error, not a short body
        metrics.PARTS.labels("down", "through").inc()
        return Stream(_joined(first, pieces), media_type="application/octet-stream")

    return [download_urls, download_part]


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


async def described(stored: Parts, one: Artifact | Entry, name: str) -> agent_api.Download:
    """The answer to who asks for it by its name, with the first of its addresses."""
    urls = await stored.addresses(one, 0, URLS_AT_ONCE)
    return agent_api.Download(one.id, name, one.size_bytes, one.sha256, parts.step_of(one), urls)
