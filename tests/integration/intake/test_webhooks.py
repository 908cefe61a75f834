"""What a sender sees, over a real socket, with a real database."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from asyncpg import Pool, Record

from kici.orchestrator.store.sources import NewSource
from tests.contract.forges import samples
from tests.support.intake_server import MIB, Orchestrator

SECRET = "s3cret"
HUB = NewSource(name="hub", provider="github")
MONITOR = NewSource(name="monitor", provider="generic", max_payload_bytes=1000)
PUSH = json.dumps(samples.GITHUB_PUSH).encode()


def signature(body: bytes, secret: str = SECRET) -> str:
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def github_headers(body: bytes, delivery: str = "1", **more: str) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "x-github-event": "push",
        "x-github-delivery": delivery,
        "x-hub-signature-256": signature(body),
        "authorization": "Bearer not for the log",
        **more,
    }


async def deliver(
    orchestrator: Orchestrator,
    http: httpx.AsyncClient,
    body: bytes = PUSH,
    path: str = "/webhook/hub",
    headers: Mapping[str, str] | None = None,
) -> httpx.Response:
    return await http.post(orchestrator.url + path, content=body, headers=headers or github_headers(body))


async def test_a_delivery_is_committed_before_it_is_accepted(
    orchestrator: Orchestrator, http: httpx.AsyncClient
) -> None:
    await orchestrator.add(HUB)
    answer = await deliver(orchestrator, http)
    assert (answer.status_code, answer.json()) == (202, {"accepted": True, "deliveryId": "github:hub:1"})
    [row] = await orchestrator.rows()
    assert (row["delivery_id"], row["event"], row["status"]) == ("github:hub:1", "push", "received")
    assert (row["repo_identifier"], row["ref"]) == ("Codertocat/Hello-World", "refs/heads/feature/x")
    assert bytes(row["body"]) == PUSH
    assert (row["payload_size_bytes"], row["payload_hash"]) == (len(PUSH), hashlib.sha256(PUSH).hexdigest())
    assert orchestrator.notifier.announced == ["kici_events"]


async def test_what_proves_a_sender_is_not_stored(orchestrator: Orchestrator, http: httpx.AsyncClient) -> None:
    await orchestrator.add(HUB)
    await orchestrator.add(
        NewSource(name="keyed", provider="generic", verification_method="api_key", header_name="X-My-Key")
    )
    await deliver(orchestrator, http)
    await deliver(orchestrator, http, b"{}", "/webhook/keyed", {"x-my-key": SECRET, "cookie": "c"})
    for row in await orchestrator.rows():
        assert not {"x-hub-signature-256", "x-my-key", "cookie"} & set(row["headers"])
        assert SECRET not in str(dict(row))


@pytest.mark.parametrize(
    "path", ["/webhook/hub", "/webhook/default/github", "/webhook/default/github/hub", "/webhook/default/github/hub/"]
)
async def test_githubs_paths(orchestrator: Orchestrator, http: httpx.AsyncClient, path: str) -> None:
    await orchestrator.add(HUB)
    assert (await deliver(orchestrator, http, path=path)).status_code == 202


async def test_a_path_without_a_source_means_the_one_whose_secret_is_known(
    orchestrator: Orchestrator, http: httpx.AsyncClient
) -> None:
    await orchestrator.add(NewSource(name="another", provider="github"), "other")
    await orchestrator.add(HUB)
    await orchestrator.add(NewSource(name="third", provider="github"), "third")
    answer = await deliver(orchestrator, http, path="/webhook/default/github")
    assert answer.json()["deliveryId"] == "github:hub:1"


@pytest.mark.parametrize(
    "path",
    [
        "/webhook/none",
        "/webhook",
        "/webhook/",
        "/webhook/other/github",
        "/webhook/default/generic/hub",
        "/webhook/default/github/none",
        "/webhook/a/b/c/d",
    ],
)
async def test_an_unknown_source_is_404(orchestrator: Orchestrator, http: httpx.AsyncClient, path: str) -> None:
    await orchestrator.add(HUB)
    answer = await deliver(orchestrator, http, path=path)
    assert (answer.status_code, answer.json()["errorCode"]) == (404, "source_unknown")
    assert "kici-admin source list" in answer.json()["error"]


async def test_a_source_that_is_switched_off_is_unknown(orchestrator: Orchestrator, http: httpx.AsyncClient) -> None:
    source = await orchestrator.add(MONITOR)
    await orchestrator.pool.execute("update generic_webhook_sources set enabled = false where id = $1", source.id)
    await orchestrator.sources.load()
    answer = await deliver(orchestrator, http, b"{}", "/webhook/monitor", {"x-signature-256": signature(b"{}")})
    assert answer.status_code == 404


@pytest.mark.parametrize("given", ["", "sha256=" + "0" * 64, signature(PUSH, "wrong"), signature(PUSH)[7:], "é"])
async def test_a_wrong_signature_is_401(orchestrator: Orchestrator, http: httpx.AsyncClient, given: str) -> None:
    await orchestrator.add(HUB)
    headers = httpx.Headers(github_headers(PUSH))
    headers["x-hub-signature-256"] = given.encode("latin-1").decode("latin-1")
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    answer = await http.post(orchestrator.url + "/webhook/hub", content=PUSH, headers=raw)
    assert (answer.status_code, answer.json()["errorCode"]) == (401, "signature_invalid")
    assert await orchestrator.rows() == []


async def test_a_body_that_is_not_json_is_400_once_it_is_proven(
    orchestrator: Orchestrator, http: httpx.AsyncClient
) -> None:
    await orchestrator.add(HUB)
    answer = await deliver(orchestrator, http, b'{"ref": ')
    assert (answer.status_code, answer.json()["errorCode"]) == (400, "payload_unreadable")
    assert "not JSON" in answer.json()["error"]
    forged = await deliver(orchestrator, http, b'{"ref": ', headers=github_headers(PUSH))
    assert forged.status_code == 401


async def test_other_methods_and_compressed_bodies_are_refused(
    orchestrator: Orchestrator, http: httpx.AsyncClient
) -> None:
    await orchestrator.add(HUB)
    answer = await http.get(orchestrator.url + "/webhook/hub")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    compressed = github_headers(PUSH, **{"content-encoding": "gzip"})
    assert (await deliver(orchestrator, http, headers=compressed)).status_code == 415


async def test_a_body_over_the_sources_bound_is_413(orchestrator: Orchestrator, http: httpx.AsyncClient) -> None:
    await orchestrator.add(MONITOR)
    for size, status in ((1000, 202), (1001, 413)):
        body = json.dumps("x" * (size - 2)).encode()
        headers = {"x-signature-256": signature(body)}
        answer = await deliver(orchestrator, http, body, "/webhook/default/generic/monitor", headers)
        assert answer.status_code == status
    assert "1000 bytes" in answer.json()["error"]


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_over_githubs_limit_is_413_while_it_is_still_being_sent(
    orchestrator: Orchestrator, http: httpx.AsyncClient, announced: bool
) -> None:
    await orchestrator.add(HUB)
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(30):
            sent += MIB
            yield b" " * MIB

    headers = github_headers(b"") | ({"content-length": str(30 * MIB)} if announced else {})
    answer = await http.post(orchestrator.url + "/webhook/hub", content=endless(), headers=headers)
    assert (answer.status_code, answer.json()["errorCode"]) == (413, "body_too_large")
    assert orchestrator.inflight.used == 0
    assert await orchestrator.rows() == []


async def test_a_delivery_that_comes_again_is_done_already(orchestrator: Orchestrator, http: httpx.AsyncClient) -> None:
    await orchestrator.add(HUB)
    await deliver(orchestrator, http)
    again = await deliver(orchestrator, http)
    assert (again.status_code, again.json()) == (
        200,
        {"accepted": True, "duplicate": True, "deliveryId": "github:hub:1"},
    )
    assert len(await orchestrator.rows()) == len(orchestrator.notifier.announced) == 1


async def test_a_delivery_that_comes_many_times_at_once_is_one_row(
    orchestrator: Orchestrator, http: httpx.AsyncClient
) -> None:
    await orchestrator.add(HUB)
    answers = await asyncio.gather(*(deliver(orchestrator, http) for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [202]
    assert len(await orchestrator.rows()) == 1


async def test_the_same_id_from_another_source_is_another_delivery(
    orchestrator: Orchestrator, http: httpx.AsyncClient
) -> None:
    await orchestrator.add(HUB)
    await orchestrator.add(NewSource(name="fork", provider="github"))
    for name in ("hub", "fork"):
        assert (await deliver(orchestrator, http, path=f"/webhook/{name}")).status_code == 202


async def test_an_event_that_the_source_does_not_take_is_not_stored(
    orchestrator: Orchestrator, http: httpx.AsyncClient
) -> None:
    await orchestrator.add(NewSource(name="hub", provider="github", allowed_events=["pull_request"]))
    answer = await deliver(orchestrator, http)
    assert (answer.status_code, answer.json()["status"]) == (200, "filtered")
    assert await orchestrator.rows() == []


async def test_a_source_that_delivers_too_often_is_told_when_to_come_back(
    orchestrator: Orchestrator, http: httpx.AsyncClient
) -> None:
    source = await orchestrator.add(MONITOR)
    await orchestrator.pool.execute("update generic_webhook_sources set rate_limit_rpm = 2 where id = $1", source.id)
    await orchestrator.sources.load()
    headers = {"x-signature-256": signature(b"{}")}
    strangers = [await deliver(orchestrator, http, b"{}", "/webhook/monitor", {}) for _ in range(3)]
    assert {answer.status_code for answer in strangers} == {401}
    for _ in range(2):
        assert (await deliver(orchestrator, http, b"{}", "/webhook/monitor", headers)).status_code == 202
        await orchestrator.sources.load()
    refused = await deliver(orchestrator, http, b"{}", "/webhook/monitor", headers)
    assert refused.status_code == 429
    assert 0 < int(refused.headers["retry-after"]) <= 60


async def test_a_full_house_is_503_at_once(pool: Pool[Record], http: httpx.AsyncClient) -> None:
    orchestrator = Orchestrator(pool, inflight=len(PUSH) - 1)
    async with orchestrator.serve():
        await orchestrator.add(HUB)
        answer = await deliver(orchestrator, http)
        assert (answer.status_code, answer.json()["errorCode"], answer.headers["retry-after"]) == (503, "busy", "1")
        assert (await deliver(orchestrator, http, b"{}")).status_code == 202


@pytest.mark.parametrize("body", [PUSH, b'{"ref": "refs/heads/main", "junk": "' + b"x" * 2 * MIB + b'"}'])
async def test_a_full_disk_of_the_database_is_503_and_nothing_half_stored(
    orchestrator: Orchestrator, http: httpx.AsyncClient, body: bytes
) -> None:
    await orchestrator.add(HUB)
    await orchestrator.pool.execute(
        """
        create function full_disk() returns trigger language plpgsql
            as $$ begin raise 'could not extend file: No space left on device' using errcode = 'disk_full'; end $$;
        create trigger full_disk before insert on event_payloads execute function full_disk();
        """
    )
    refused = await deliver(orchestrator, http, body)
    assert (refused.status_code, refused.json()["errorCode"]) == (503, "unavailable")
    assert await orchestrator.rows() == []
    await orchestrator.pool.execute("drop trigger full_disk on event_payloads")
    assert (await deliver(orchestrator, http, body)).status_code == 202


async def test_a_refusal_keeps_the_connection_of_a_sender_that_has_said_everything(
    orchestrator: Orchestrator, http: httpx.AsyncClient
) -> None:
    await orchestrator.add(HUB)
    async with asyncio.timeout(1.5):
        refused = await deliver(orchestrator, http, headers=github_headers(b"other"))
        assert refused.status_code == 401
        assert "connection" not in refused.headers
        assert (await deliver(orchestrator, http)).status_code == 202


def rss_anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon in /proc/self/status")


async def test_githubs_largest_body_is_taken_in_without_being_held(
    pool: Pool[Record], http: httpx.AsyncClient, tmp_path: Path
) -> None:
    orchestrator = Orchestrator(pool, spool_directory=tmp_path)
    digest = hashlib.sha256()
    code = hmac.new(SECRET.encode(), digestmod=hashlib.sha256)

    def pieces() -> Iterator[bytes]:
        yield b'{"ref": "refs/heads/main", "junk": ["'
        yield from (b"x" * 65_536 for _ in range(399))
        yield b'"]}'

    for piece in pieces():
        digest.update(piece)
        code.update(piece)

    async def sent() -> AsyncIterator[bytes]:
        for piece in pieces():
            yield piece

    peak = 0

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, rss_anonymous())
            await asyncio.sleep(0.001)

    async with orchestrator.serve():
        await orchestrator.add(HUB)
        await deliver(orchestrator, http)
        before = rss_anonymous()
        watching = asyncio.create_task(watch())
        headers = github_headers(b"", "big", **{"x-hub-signature-256": "sha256=" + code.hexdigest()})
        answer = await http.post(orchestrator.url + "/webhook/hub", content=sent(), headers=headers)
        watching.cancel()
    assert answer.status_code == 202, answer.text
    assert peak - before < 12 * MIB
    stored = await pool.fetchrow(
        "select e.ref, e.payload_hash, length(p.body) as length, encode(sha256(p.body), 'hex') as hash"
        "  from event_log e join event_payloads p on p.event_id = e.id where e.delivery_id = 'github:hub:big'"
    )
    assert stored is not None
    assert stored["payload_hash"] == stored["hash"] == digest.hexdigest()
    assert stored["ref"] == "refs/heads/main"
    assert os.listdir(tmp_path) == []


async def test_a_large_delivery_that_comes_again_is_done_already(
    orchestrator: Orchestrator, http: httpx.AsyncClient
) -> None:
    await orchestrator.add(HUB)
    body = json.dumps({"ref": "refs/heads/main", "junk": "x" * 2 * MIB}).encode()
    answers = await asyncio.gather(*(deliver(orchestrator, http, body) for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 202]
    [row] = await orchestrator.rows()
    assert bytes(row["body"]) == body


async def test_requests_that_come_together_share_commits(orchestrator: Orchestrator, http: httpx.AsyncClient) -> None:
    await orchestrator.add(HUB)
    await asyncio.gather(
        *(deliver(orchestrator, http, headers=github_headers(PUSH, f"d{number}")) for number in range(64))
    )
    rows = await orchestrator.rows()
    transactions = await orchestrator.pool.fetchval("select count(distinct xmin::text) from event_log")
    assert len(rows) == 64
    assert transactions <= 32


async def test_a_source_without_a_readable_secret_is_told_as_a_fault_of_ours(
    orchestrator: Orchestrator, http: httpx.AsyncClient
) -> None:
    await orchestrator.add(HUB)
    await orchestrator.pool.execute("update scoped_secrets set encrypted_value = 'AAAA'")
    await orchestrator.sources.load()
    answer = await deliver(orchestrator, http)
    assert (answer.status_code, answer.json()["errorCode"]) == (500, "source_misconfigured")


def nothing_shows(orchestrator: Orchestrator, secret: str) -> Any:
    known = orchestrator.sources.by_name("hub")
    assert known
    return [text for text in (repr(known), repr(orchestrator.sources), repr(orchestrator.secrets)) if secret in text]


async def test_a_secret_is_encrypted_at_rest_and_shows_nowhere(
    orchestrator: Orchestrator, http: httpx.AsyncClient, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "very-secret-value"
    await orchestrator.add(HUB, secret)
    await deliver(orchestrator, http)
    stored = await orchestrator.pool.fetch("select * from scoped_secrets")
    assert len(stored) == 1
    assert secret not in str(stored)
    assert nothing_shows(orchestrator, secret) == []
    shown = capfd.readouterr()
    assert secret not in shown.out + shown.err
