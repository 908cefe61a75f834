"""The routes of artifacts, and what the agent does with them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator

import httpx
import pytest
from asyncpg import Pool, Record

from kici.agent import artifacts
from kici.agent.errors import TransferFailed
from tests.support import rows
from tests.support.agent_api import agent_api
from tests.support.api_server import JOB_TOKEN, Parts, client


async def stream(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 100_000):
        yield data[at : at + 100_000]


async def fetched(parts: Parts, job: rows.Job, name: str) -> bytes:
    return b"".join([piece async for piece in artifacts.download(agent_api(parts, job), name)])


async def test_an_artifact_goes_up_and_comes_down_byte_for_byte(
    parts: Parts, admin: httpx.AsyncClient, job: rows.Job
) -> None:
    data = os.urandom(19_000_000)
    await artifacts.upload(agent_api(parts, job), "wheel (3.11)", stream(data))
    assert await fetched(parts, job, "wheel (3.11)") == data
    (listed,) = (await admin.get(f"/api/v1/admin/runs/{job.run_id}/artifacts")).json()["artifacts"]
    assert (listed["name"], listed["jobName"], listed["sizeBytes"]) == ("wheel (3.11)", "build", len(data))
    assert listed["sha256"] == hashlib.sha256(data).hexdigest()
    whole = await admin.get(f"/api/v1/admin/runs/{job.run_id}/artifacts/wheel%20(3.11)")
    assert (whole.content, whole.headers["content-length"]) == (data, str(len(data)))


async def test_an_empty_artifact_is_one(parts: Parts, admin: httpx.AsyncClient, job: rows.Job) -> None:
    await artifacts.upload(agent_api(parts, job), "empty", stream(b""))
    assert await fetched(parts, job, "empty") == b""
    whole = await admin.get(f"/api/v1/admin/runs/{job.run_id}/artifacts/empty")
    assert (whole.status_code, whole.content) == (200, b"")


async def test_refusals_come_in_the_orchestrators_words(pool: Pool[Record], parts: Parts, job: rows.Job) -> None:
    api, stranger = agent_api(parts, job), agent_api(parts, job, token="kjt_" + "0" * 64)
    other = await rows.add_job(pool, job.run_id, name="other")
    await artifacts.upload(api, "one", stream(b"x"))
    await artifacts.upload(api, "one", stream(b"x"))
    for refused, words in (
        (artifacts.upload(api, "one", stream(b"y")), "'one' was not stored: .*made by job 'build'"),
        (artifacts.upload(agent_api(parts, job, attempt=2), "two", stream(b"x")), "attempt 2 is over"),
        (artifacts.upload(api, "-bad", stream(b"x")), "cannot be the name of an artifact"),
        (artifacts.upload(api, "big", stream(bytes(20_000_001))), "'big' is larger than 20,000,000 bytes"),
        (artifacts.upload(agent_api(parts, other), "two", stream(b"x")), "belongs to another job"),
        (artifacts.upload(stranger, "two", stream(b"x")), "not valid, or its job has ended"),
        (fetched(parts, job, "none"), "'none' cannot be read: the run has no artifact 'none'; it has: 'one'"),
    ):
        with pytest.raises(TransferFailed, match=words):
            await refused
    with pytest.raises(TransferFailed, match="not valid, or its job has ended"):
        await anext(artifacts.download(stranger, "one"))


async def test_every_step_of_an_upload_needs_the_token_of_the_job(parts: Parts, job: rows.Job) -> None:
    base = f"/api/v1/agent/jobs/{job.job_id}"
    async with client(parts.url, JOB_TOKEN) as agent, client(parts.url, "kjt_" + "0" * 64) as stranger:
        sent, range_ = {"kind": "artifact", "name": "wheel"}, {"first": 0, "count": 1}
        begun = (await agent.post(f"{base}/uploads?attempt=1", json=sent)).json()["uploadId"]
        one, complete = f"{base}/uploads/{begun}", {"sizeBytes": 0, "sha256": hashlib.sha256().hexdigest(), "parts": 0}
        for who, attempt, status in ((stranger, 1, 401), (agent, 2, 409)):
            for answer in (
                await who.post(f"{base}/uploads?attempt={attempt}", json=sent),
                await who.post(f"{one}/urls?attempt={attempt}", json=range_),
                await who.put(f"{one}/parts/0?attempt={attempt}", content=b"x"),
                await who.post(f"{one}/complete?attempt={attempt}", json=complete),
                await who.delete(f"{one}?attempt={attempt}"),
                await who.post(
                    f"{base}/downloads/{begun}/urls?kind=cache&attempt={attempt}", json={"first": 0, "count": 1}
                ),
                await who.get(f"{base}/downloads/{begun}/parts/0?kind=artifact&attempt={attempt}"),
            ):
                assert answer.status_code == status, answer.text
        assert (await agent.post(f"{one}/complete?attempt=1", json=complete)).json() == {"kept": True, "reason": ""}


async def test_what_an_upload_may_not_be_is_a_400_with_a_sentence(parts: Parts, job: rows.Job) -> None:
    base = f"/api/v1/agent/jobs/{job.job_id}"
    async with client(parts.url, JOB_TOKEN) as agent:
        assert (await agent.post(f"{base}/uploads?attempt=1", json={"kind": "secret", "name": "x"})).status_code == 400
        begun = await agent.post(f"{base}/uploads?attempt=1", json={"kind": "artifact", "name": "wheel"})
        one = f"{base}/uploads/{begun.json()['uploadId']}"
        for range_ in ({"first": 0, "count": 0}, {"first": 0, "count": 17}, {"first": -1, "count": 1}):
            assert (await agent.post(f"{one}/urls?attempt=1", json=range_)).status_code == 400
        assert (await agent.post(f"{one}/urls?attempt=1", json={"first": 3, "count": 1})).status_code == 413
        assert (await agent.put(f"{one}/parts/3?attempt=1", content=b"x")).status_code == 413
        too_long = await agent.put(f"{one}/parts/0?attempt=1", content=bytes(8 * 1024 * 1024 + 1))
        assert (too_long.status_code, too_long.json()["errorCode"]) == (413, "too_large")
        assert (await agent.put(f"{base}/uploads/x/parts/0?attempt=1", content=b"x")).status_code == 400


async def test_an_upload_that_breaks_off_leaves_nothing(pool: Pool[Record], parts: Parts, job: rows.Job) -> None:
    async def broken() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 100_000
        raise OSError("the cable was pulled")

    api = agent_api(parts, job)
    with pytest.raises(OSError, match="cable"):
        await artifacts.upload(api, "half", broken())
    with pytest.raises(TransferFailed, match="it has: none"):
        await fetched(parts, job, "half")
    assert [tuple(row) for row in await pool.fetch("select state, reason from uploads")] == [
        ("over", "it was given up")
    ]
    await artifacts.upload(api, "half", stream(b"whole"))
    assert await fetched(parts, job, "half") == b"whole"


async def test_a_damaged_artifact_is_told_as_such(pool: Pool[Record], parts: Parts, job: rows.Job) -> None:
    api = agent_api(parts, job)
    for number, damage in enumerate((b"evil", b"goo", b"good and more", None)):
        await artifacts.upload(api, f"a{number}", stream(b"good"))
        key = await pool.fetchval("select object_key || '/0' from artifacts where name = $1", f"a{number}")
        await (parts.objects.delete(key) if damage is None else parts.objects.put(key, damage))
        with pytest.raises(TransferFailed, match=f"artifact 'a{number}' arrived damaged"):
            await fetched(parts, job, f"a{number}")
