from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import suppress

import httpx
from asyncpg import Pool, Record

from tests.support import rows
from tests.support.api_server import JOB_TOKEN, Parts, client


def path(job: rows.Job, name: str, attempt: int = 1) -> str:
    return f"/api/v1/agent/jobs/{job.job_id}/artifacts/{name}?attempt={attempt}"


async def stream(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 100_000):
        yield data[at : at + 100_000]


async def test_an_artifact_goes_up_and_comes_down_byte_for_byte(
    parts: Parts, admin: httpx.AsyncClient, job: rows.Job
) -> None:
    data = os.urandom(15_000_000)
    async with client(parts.url, JOB_TOKEN) as agent:
        sent = await agent.put(path(job, "wheel%20(3.11)"), content=stream(data))
        assert sent.status_code == 201, sent.text
        assert sent.json()["sha256"] == hashlib.sha256(data).hexdigest()
        fetched = await agent.get(path(job, "wheel%20(3.11)"))
    assert (fetched.status_code, fetched.content) == (200, data)
    listed = (await admin.get(f"/api/v1/admin/runs/{job.run_id}/artifacts")).json()["artifacts"]
    assert [(one["name"], one["jobName"], one["sizeBytes"]) for one in listed] == [("wheel (3.11)", "build", len(data))]
    assert (await admin.get(f"/api/v1/admin/runs/{job.run_id}/artifacts/wheel%20(3.11)")).content == data


async def test_an_empty_artifact_is_one(parts: Parts, job: rows.Job) -> None:
    async with client(parts.url, JOB_TOKEN) as agent:
        assert (await agent.put(path(job, "empty"), content=b"")).status_code == 201
        fetched = await agent.get(path(job, "empty"))
    assert (fetched.status_code, fetched.content) == (200, b"")


async def test_refusals_are_distinct(pool: Pool[Record], parts: Parts, job: rows.Job) -> None:
    other = await rows.add_job(pool, job.run_id, name="other")
    async with client(parts.url, JOB_TOKEN) as agent, client(parts.url, "kjt_" + "0" * 64) as stranger:
        assert (await agent.put(path(job, "one"), content=b"x")).status_code == 201
        taken = await agent.put(path(job, "one"), content=b"y")
        assert (taken.status_code, taken.json()["errorCode"]) == (409, "conflict")
        over = await agent.put(path(job, "two", attempt=2), content=b"x")
        assert (over.status_code, over.json()["errorCode"]) == (409, "attempt_over")
        assert (await agent.put(path(job, "-bad"), content=b"x")).status_code == 400
        assert (await agent.put(path(job, "big"), content=stream(bytes(20_000_001)))).status_code == 413
        assert (await agent.put(path(other, "two"), content=b"x")).status_code == 403
        assert (await agent.get(path(job, "none"))).status_code == 404
        assert (await stranger.put(path(job, "two"), content=b"x")).status_code == 401
        assert (await stranger.get(path(job, "one"))).status_code == 401


async def test_an_upload_that_breaks_off_leaves_nothing(parts: Parts, admin: httpx.AsyncClient, job: rows.Job) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 6_000_000
        raise OSError("the cable was pulled")

    async with client(parts.url, JOB_TOKEN) as agent:
        with suppress(OSError):
            await agent.put(path(job, "half"), content=broken())
        assert (await agent.get(path(job, "half"))).status_code == 404
        assert (await agent.put(path(job, "half"), content=b"whole")).status_code == 201
