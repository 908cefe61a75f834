"""Artifacts: agents find them with the job's token (`uploads` and `downloads` move them); people list and fetch
them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from asyncpg import Pool, Record
from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery
from litestar.response import Stream

from kici.orchestrator.api import parameters, permitted
from kici.orchestrator.api.attempts import attempt_of
from kici.orchestrator.api.downloads import described
from kici.orchestrator.api.runs import existing
from kici.orchestrator.caches.artifacts import Artifacts
from kici.orchestrator.identity.access import Access
from kici.orchestrator.store.artifacts import Artifact
from kici.orchestrator.store.database import transaction
from kici.wire import agent_api, api

AGENT_PATH = "/api/v1/agent/jobs/{job_id:str}/artifacts/{name:str}"


def routes(pool: Pool[Record], access: Access, artifacts: Artifacts) -> list[HTTPRouteHandler]:
    @get(AGENT_PATH)
    async def find(
        job_id: FromPath[str], name: FromPath[str], request: Request[Any, Any, Any], attempt: FromQuery[int]
    ) -> agent_api.Download:
        """An artifact of the same run."""
        job = await attempt_of(access, request, job_id, attempt)
        permitted.require(job, "artifacts", permitted.READ)
        found = await artifacts.find(job.run_id, name)
        return await described(artifacts.parts, found, found.name)

    @get("/api/v1/admin/runs/{run_id:str}/artifacts", guards=[access.guard("run.read")])
    async def list_artifacts(run_id: FromPath[str]) -> api.ArtifactList:
        wanted = parameters.uuid_of(run_id, "run")
        async with transaction(pool) as db:
            await existing(db, wanted)
        return api.ArtifactList([_body(artifact) for artifact in await artifacts.of_run(wanted)])

    @get("/api/v1/admin/runs/{run_id:str}/artifacts/{name:str}", guards=[access.guard("run.read")])
    async def download_by_name(run_id: FromPath[str], name: FromPath[str]) -> Stream:
        wanted = parameters.uuid_of(run_id, "run")
        async with transaction(pool) as db:
            await existing(db, wanted)
        return await _stream(artifacts, await artifacts.find(wanted, name))

    return [find, list_artifacts, download_by_name]


async def _stream(artifacts: Artifacts, artifact: Artifact) -> Stream:
    """Starts the read before the answer's head is sent: an object that cannot be read is an error, not a short body."""
    pieces = artifacts.read(artifact)
    first = await anext(pieces, b"")

    async def body() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    return Stream(
        body(),
        media_type="application/octet-stream",
        headers={
            "content-length": str(artifact.size_bytes),
            "etag": f'"{artifact.sha256}"',
            "content-disposition": "attachment",
            "x-content-type-options": "nosniff",
        },
    )


def _body(artifact: Artifact) -> api.Artifact:
    return api.Artifact(
        name=artifact.name,
        job_id=artifact.job_id,
        job_name=artifact.job_name,
        size_bytes=artifact.size_bytes,
        sha256=artifact.sha256,
        created_at=artifact.created_at,
        expired_at=artifact.expired_at,
    )
