from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import httpx
import pytest
from litestar import get, post
from litestar.params import FromPath, JSONBody
from msgspec import Struct

from kici.orchestrator import http
from kici.orchestrator.errors import NotFound, Unauthorized, Unavailable
from tests.support.services import running


class Thing(Struct):
    name: str
    size: int = 0


class Gate:
    """A request that goes on until it is opened."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()


def routes(gate: Gate) -> list[Any]:
    failures: dict[str, Callable[[], Exception]] = {
        "not-found": lambda: NotFound("there is no such thing"),
        "away": ConnectionRefusedError,
        "unavailable": lambda: Unavailable("try again"),
        "unauthorized": lambda: Unauthorized("Missing authorization"),
        "malformed": lambda: asyncpg.DataError("invalid input"),
        "twice": lambda: asyncpg.UniqueViolationError("duplicate"),
        "bug": lambda: RuntimeError("secret detail"),
    }

    @get("/fail/{name:str}")
    async def fail(name: FromPath[str]) -> None:
        raise failures[name]()

    @post("/things")
    async def make(data: JSONBody[Thing]) -> Thing:
        return data

    @get("/slow")
    async def slow() -> dict[str, bool]:
        gate.entered.set()
        await gate.opened.wait()
        return {"done": True}

    return [fail, make, slow]


@asynccontextmanager
async def served(gate: Gate, base_path: str = "/") -> AsyncIterator[httpx.AsyncClient]:
    with http.listen("127.0.0.1", 0, None) as listener:
        server = http.HttpServer(http.application(routes(gate), base_path=base_path), listener)
        async with running(server), httpx.AsyncClient(base_url=http.address(listener), timeout=10) as client:
            await server.listening.wait()
            yield client


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with served(Gate()) as client:
        yield client


@pytest.mark.parametrize(
    ("name", "status", "code", "sentence"),
    [
        ("not-found", 404, "not_found", "there is no such thing"),
        ("away", 503, "unavailable", "the database cannot be reached: try again"),
        ("unavailable", 503, "unavailable", "try again"),
        ("unauthorized", 401, "unauthorized", "Missing authorization"),
        ("malformed", 400, "invalid_request", "Invalid request: malformed value for a typed field"),
        ("twice", 409, "conflict", "Conflict: resource already exists"),
        ("bug", 500, "internal_error", "Internal server error"),
    ],
)
async def test_an_error_is_a_problem_with_its_status(
    client: httpx.AsyncClient, name: str, status: int, code: str, sentence: str
) -> None:
    answer = await client.get(f"/fail/{name}")
    assert (answer.status_code, answer.json()) == (status, {"error": sentence, "errorCode": code, "details": []})
    assert ("retry-after" in answer.headers) == (status == 503)
    assert ("www-authenticate" in answer.headers) == (status == 401)


@pytest.mark.parametrize("body", [b"{", b"", b"\xff\xfe", b'{"name": 1}', b'{"name": "a", "size": "big"}', b"[]"])
async def test_a_body_that_cannot_be_read_is_the_senders_fault(client: httpx.AsyncClient, body: bytes) -> None:
    answer = await client.post("/things", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["errorCode"] == "invalid_request"


async def test_a_wrong_field_is_named(client: httpx.AsyncClient) -> None:
    answer = await client.post("/things", json={"name": "a", "size": "big"})
    assert answer.json()["error"] == "Validation error"
    assert "size" in str(answer.json()["details"])


async def test_a_body_over_the_limit_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/things", json={"name": "x" * http.BODY_BYTES})
    assert (answer.status_code, answer.json()["errorCode"]) == (413, "too_large")


async def test_what_does_not_exist_is_a_problem_too(client: httpx.AsyncClient) -> None:
    missing, wrong = await client.get("/nothing"), await client.put("/things")
    assert (missing.status_code, missing.json()["errorCode"]) == (404, "not_found")
    assert (wrong.status_code, set(wrong.json())) == (405, {"error", "errorCode", "details"})


async def test_every_answer_carries_a_request_id_ours_or_the_senders(client: httpx.AsyncClient) -> None:
    assert (await client.get("/nothing", headers={"X-Request-ID": "abc-1"})).headers["x-request-id"] == "abc-1"
    for bad in ("a b", "x" * 200):
        assert (await client.get("/nothing", headers={"X-Request-ID": bad})).headers["x-request-id"] != bad


async def test_the_schema_comes_from_the_types(client: httpx.AsyncClient) -> None:
    schema = (await client.get("/schema/openapi.json")).json()
    assert schema["paths"]["/things"]["post"]["requestBody"]["required"]
    assert set(schema["components"]["schemas"]["Thing"]["properties"]) == {"name", "size"}


async def test_a_base_path_stands_before_every_route() -> None:
    async with served(Gate(), "/kici/") as client:
        assert (await client.post("/kici/things", json={"name": "a"})).status_code == 201
        assert (await client.get("/kici/schema/openapi.json")).status_code == 200
        assert (await client.post("/things", json={"name": "a"})).status_code == 404


async def test_a_request_that_runs_when_the_server_stops_is_answered_and_the_listener_serves_again() -> None:
    with http.listen("127.0.0.1", 0, None) as listener:
        for _ in range(2):
            gate = Gate()
            server = http.HttpServer(http.application(routes(gate)), listener)
            async with asyncio.timeout(20), httpx.AsyncClient(base_url=http.address(listener), timeout=10) as client:
                service = asyncio.create_task(server.run())
                await server.listening.wait()
                request = asyncio.create_task(client.get("/slow"))
                await gate.entered.wait()
                service.cancel()
                await asyncio.sleep(0)
                gate.opened.set()
                assert (await request).json() == {"done": True}
                with pytest.raises(asyncio.CancelledError):
                    await service


async def test_an_address_that_is_taken_is_named() -> None:
    with http.listen("127.0.0.1", 0, None) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(http.AddressUnusable, match=f"127.0.0.1:{port} .* cannot be listened on"):
            http.listen("127.0.0.1", port, None)
    with pytest.raises(http.AddressUnusable, match="KICI_LISTEN_FD"):
        http.listen("", 0, 999)
