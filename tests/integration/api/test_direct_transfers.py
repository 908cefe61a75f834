"""Artifacts and cache entries that go straight to and from a real S3 server by signed addresses."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import msgspec
import pytest
from asyncpg import Pool, Record
from structlog.testing import capture_logs

from kici.agent import artifacts, caches
from kici.agent.errors import TransferFailed
from kici.agent.job_api import JobApi
from kici.agent.part_carrier import PartCarrier
from kici.orchestrator.caches import metrics
from kici.orchestrator.caches import parts as parts_module
from kici.orchestrator.settings import Settings
from kici.wire.agent_api import UploadBegun
from tests.support import rows
from tests.support.agent_api import agent_api
from tests.support.api_server import JOB_TOKEN, Parts, client, serve
from tests.support.cutter import Cutter
from tests.support.relay import port_of
from tests.support.seaweedfs import Served, seaweedfs
from tests.support.serving import serving
from tests.support.transfers import DATA, PART, read, stream


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with seaweedfs() as served:
        yield served


@pytest.fixture
async def cutter(server: Served) -> AsyncIterator[Cutter]:
    """Between the agent and the bucket."""
    async with Cutter(port_of(server.endpoint)) as between:
        yield between


@pytest.fixture
async def parts(
    pool: Pool[Record],
    database_url: str,
    tmp_path: Path,
    server: Served,
    cutter: Cutter,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Parts]:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    settings = Settings(
        storage_type="s3",
        storage_bucket=server.bucket,
        storage_region="us-east-1",
        storage_endpoint=server.endpoint,
        storage_external_endpoint=cutter.url,
        storage_prefix=f"test-{uuid.uuid4().hex}",
    )
    async with serve(pool, database_url, tmp_path, storage=settings) as served:
        yield served


@pytest.fixture
def api(parts: Parts, job: rows.Job) -> JobApi:
    return agent_api(parts, job)


def through() -> float:
    """Parts that went through the orchestrator."""
    return float(sum(metrics.PARTS.labels(way, "through")._value.get() for way in ("up", "down")))


async def test_parts_go_past_the_orchestrator_and_without_the_jobs_token(
    parts: Parts, admin: httpx.AsyncClient, job: rows.Job, api: JobApi, cutter: Cutter
) -> None:
    before = through()
    assert await caches.save(api, "k", stream(DATA)) == ""
    assert await read(api) == DATA
    await artifacts.upload(api, "wheel", stream(DATA))
    assert b"".join([piece async for piece in artifacts.download(api, "wheel")]) == DATA
    assert through() == before
    assert api.direct
    assert (b"PUT /" in cutter.seen, b"GET /" in cutter.seen) == (True, True)
    assert (JOB_TOKEN.encode() in cutter.seen, b"authorization" in cutter.seen.lower()) == (False, False)
    whole = await admin.get(f"/api/v1/admin/runs/{job.run_id}/artifacts/wheel")
    assert whole.content == DATA


async def test_a_connection_to_the_bucket_that_is_cut_costs_only_a_part(api: JobApi, cutter: Cutter) -> None:
    cutter.up = 5_000_000
    before = through()
    assert await caches.save(api, "k", stream(DATA)) == ""
    cutter.down = 5_000_000
    assert await read(api) == DATA
    assert cutter.cuts == 2
    assert through() == before


async def test_an_agent_that_cannot_reach_the_bucket_goes_through_the_orchestrator_and_says_so_without_the_address(
    parts: Parts, job: rows.Job, cutter: Cutter
) -> None:
    cutter.target = 1  # nobody listens there
    api, before = agent_api(parts, job), through()
    with capture_logs() as logs:
        assert await caches.save(api, "k", stream(DATA)) == ""
    assert through() == before + 3
    (remark,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert (remark["store"], "X-Amz" in str(logs)) == ("127.0.0.1", False)
    assert await read(api) == DATA
    assert through() == before + 6


async def test_while_the_bucket_is_down_for_everybody_the_agent_waits_and_then_goes_on(
    pool: Pool[Record], database_url: str, tmp_path: Path, server: Served, parts: Parts, job: rows.Job, cutter: Cutter
) -> None:
    """The orchestrator, too, reaches it over the wire that is cut."""
    settings = Settings(
        storage_type="s3",
        storage_bucket=server.bucket,
        storage_region="us-east-1",
        storage_endpoint=cutter.url,
        storage_prefix=f"test-{uuid.uuid4().hex}",
    )
    port = cutter.target

    async def down_for_a_while(api: JobApi) -> AsyncIterator[bytes]:
        async for piece in stream(DATA[: PART + 1]):
            yield piece
        cutter.close()
        for start in range(PART + 1, len(DATA), PART // 2):
            yield DATA[start : start + PART // 2]
        async with asyncio.timeout(60):
            while api.direct:
                await asyncio.sleep(0.01)
        cutter.target = port

    async with serve(pool, database_url, tmp_path, storage=settings, tokens=False) as cut_off:
        api = agent_api(cut_off, job)
        assert await caches.save(api, "k", down_for_a_while(api)) == ""
        assert not api.direct
        assert await read(api) == DATA


async def test_the_address_of_a_part_stands_in_no_log(api: JobApi, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await caches.save(api, "k", stream(b"x"))
    await read(api)
    assert "Signature" not in caplog.text


async def test_an_address_whose_time_is_over_is_asked_for_anew(
    api: JobApi, monkeypatch: pytest.MonkeyPatch, cutter: Cutter
) -> None:
    """Of the first parts the addresses are no longer valid when the agent comes to use them."""
    monkeypatch.setattr(parts_module, "URL_LASTS", timedelta(seconds=1))
    before = through()

    async def late() -> AsyncIterator[bytes]:
        async with httpx.AsyncClient(trust_env=False) as probe:
            url = await sign(api)
            while (await probe.put(url, content=b"")).status_code != 403:
                pass
        monkeypatch.setattr(parts_module, "URL_LASTS", timedelta(minutes=1))
        async for piece in stream(DATA):
            yield piece

    assert await caches.save(api, "k", late()) == ""
    assert through() == before
    assert api.direct


async def sign(api: JobApi) -> str:
    begin = b'{"kind": "cache", "name": "probe"}'
    answer = await api.repeated("POST", "uploads", "", content=begin, headers={"content-type": "application/json"})
    begun = msgspec.json.decode(answer.content, type=UploadBegun)
    assert begun.urls[0]
    assert "Signature" not in repr(begun)
    return begun.urls[0]


async def test_what_is_written_with_a_stale_address_after_publishing_is_seen_by_every_reader_and_removed(
    pool: Pool[Record], parts: Parts, job: rows.Job, api: JobApi
) -> None:
    base = f"/api/v1/agent/jobs/{job.job_id}/uploads"
    for kind, evil in (("cache", b"evil"), ("cache", b"long and evil"), ("artifact", b"evil")):
        name = f"{kind}-{len(evil)}"
        async with client(parts.url, JOB_TOKEN) as agent, httpx.AsyncClient(trust_env=False) as bucket:
            begun = (await agent.post(f"{base}?attempt=1", json={"kind": kind, "name": name})).json()
            url = begun["urls"][0]
            assert (await bucket.put(url, content=b"good")).is_success
            complete = {"sizeBytes": 4, "sha256": hashlib.sha256(b"good").hexdigest(), "parts": 1}
            done = await agent.post(f"{base}/{begun['uploadId']}/complete?attempt=1", json=complete)
            assert done.json()["kept"]
            assert (await bucket.put(url, content=evil)).is_success
        if kind == "cache":
            with pytest.raises(TransferFailed, match="damaged in the store, so the entry was removed"):
                await read(api, name)
            assert await read(api, name) is None
        else:
            with pytest.raises(TransferFailed, match="arrived damaged"):
                assert [piece async for piece in artifacts.download(api, name)]


async def test_a_late_part_of_an_upload_that_is_over_changes_nothing_and_goes_with_it(
    pool: Pool[Record], parts: Parts, api: JobApi
) -> None:
    url = await sign(api)
    assert await caches.save(api, "probe", stream(b"good")) == ""
    async with httpx.AsyncClient(trust_env=False) as bucket:
        assert (await bucket.put(url, content=b"late")).is_success
    assert await read(api, "probe") == b"good"


async def test_a_job_is_not_led_from_https_to_an_open_wire(parts: Parts, job: rows.Job) -> None:
    api = agent_api(parts, job, url="https://orchestrator.example")
    carrier = PartCarrier(api, "", "", [])
    assert [carrier._may_go_to(f"{scheme}://bucket/x") for scheme in ("https", "http", "ftp", "file")] == [
        True,
        False,
        False,
        False,
    ]


async def test_a_redirect_of_the_store_is_not_followed(parts: Parts, job: rows.Job, api: JobApi) -> None:
    asked: list[str] = []

    async def redirects(scope: dict[str, object], receive: object, send: object) -> None:
        asked.append(str(scope["path"]))
        await send(  # type: ignore[operator]
            {"type": "http.response.start", "status": 307, "headers": [(b"location", b"/elsewhere")]}
        )
        await send({"type": "http.response.body", "body": b"x" * 1_000_000})  # type: ignore[operator]

    before = through()
    answer = await api.repeated(
        "POST",
        "uploads",
        "",
        content=b'{"kind": "cache", "name": "k"}',
        headers={"content-type": "application/json"},
    )
    begun = msgspec.json.decode(answer.content, type=UploadBegun)
    async with (
        serving(redirects) as url,
        PartCarrier(api, "", f"uploads/{begun.upload_id}", [f"{url}/part"]) as carrier,
    ):
        await carrier.send(0, [b"x"])
    assert asked == ["/part"]
    assert through() == before + 1
