"""`/api/v1/agent/jobs/{id}/uploads`: how an attempt sends artifacts and cache entries, part by part."""

from __future__ import annotations

from typing import Annotated, Any, Final

from litestar import Request, delete, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, FromPath, FromQuery

from kici.orchestrator.api import parameters, permitted
from kici.orchestrator.api.attempts import attempt_of
from kici.orchestrator.caches.parts import URLS_AT_FIRST, URLS_AT_ONCE
from kici.orchestrator.caches.uploads import Uploads
from kici.orchestrator.identity.access import Access
from kici.wire import agent_api

PATH: Final = "/api/v1/agent/jobs/{job_id:str}/uploads"
_ONE: Final = f"{PATH}/{{upload_id:str}}"


def routes(access: Access, uploads: Uploads) -> list[HTTPRouteHandler]:
    @post(PATH, status_code=200)
    async def begin_upload(
        job_id: FromPath[str],
        request: Request[Any, Any, Any],
        attempt: FromQuery[int],
        data: Annotated[agent_api.UploadBegin, Body()],
    ) -> agent_api.UploadBegun:
        """To be asked before anything is sent: an entry that is there already is not sent. 409: another job of the run
        has given the artifact's name, or the attempt is over."""
        job = await attempt_of(access, request, job_id, attempt)
        # The other routes are for an upload that this attempt has begun, and so was permitted to.
        permitted.require(job, f"{data.kind}s", permitted.WRITE)
        begun = await uploads.begin(job.job_id, attempt, data.kind, data.name)
        if begun.upload is None:
            return agent_api.UploadBegun(reason=begun.reason)
        urls = await uploads.urls(job.job_id, attempt, begun.upload.id, 0, URLS_AT_FIRST)
        return agent_api.UploadBegun(begun.upload.id, "", begun.upload.part_bytes, urls)

    @post(f"{_ONE}/urls", status_code=200)
    async def upload_urls(
        job_id: FromPath[str],
        upload_id: FromPath[str],
        request: Request[Any, Any, Any],
        attempt: FromQuery[int],
        data: Annotated[agent_api.PartRange, Body()],
    ) -> agent_api.PartUrls:
        """Where parts go. 413: the upload may not have so many."""
        job = await attempt_of(access, request, job_id, attempt)
        wanted = parameters.uuid_of(upload_id, "upload")
        count = parameters.within(data.count, 1, URLS_AT_ONCE, "count")
        return agent_api.PartUrls(await uploads.urls(job.job_id, attempt, wanted, data.first, count))

    @put(f"{_ONE}/parts/{{number:int}}", status_code=204, request_max_body_size=None)
    async def upload_part(
        job_id: FromPath[str],
        upload_id: FromPath[str],
        number: FromPath[int],
        request: Request[Any, Any, Any],
        attempt: FromQuery[int],
    ) -> None:
        """Body: the bytes of one part. Sent again it is replaced."""
        job = await attempt_of(access, request, job_id, attempt)
        wanted = parameters.uuid_of(upload_id, "upload")
        await uploads.put(job.job_id, attempt, wanted, number, request.stream())

    @post(f"{_ONE}/complete", status_code=200)
    async def complete_upload(
        job_id: FromPath[str],
        upload_id: FromPath[str],
        request: Request[Any, Any, Any],
        attempt: FromQuery[int],
        data: Annotated[agent_api.UploadComplete, Body()],
    ) -> agent_api.UploadDone:
        """All parts are there: from now on others find it. Asked twice, the answer is the same. 409: an artifact's name
        is taken, or the attempt is over."""
        job = await attempt_of(access, request, job_id, attempt)
        wanted = parameters.uuid_of(upload_id, "upload")
        done = await uploads.complete(job.job_id, attempt, wanted, data.size_bytes, data.sha256, data.parts)
        return agent_api.UploadDone(done.kept, done.reason)

    @delete(_ONE, status_code=204)
    async def abandon_upload(
        job_id: FromPath[str], upload_id: FromPath[str], request: Request[Any, Any, Any], attempt: FromQuery[int]
    ) -> None:
        """What was sent is removed."""
        job = await attempt_of(access, request, job_id, attempt)
        await uploads.abandon(job.job_id, attempt, parameters.uuid_of(upload_id, "upload"))

    return [begin_upload, upload_urls, upload_part, complete_upload, abandon_upload]
