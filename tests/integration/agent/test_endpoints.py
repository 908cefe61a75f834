"""What an agent answers over HTTP, and to whom not."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from kici.agent.endpoints import Endpoints, State, listening
from kici.agent.errors import SettingsInvalid
from tests.support import agent_process
from tests.support.agent_orchestrator import Orchestrator
from tests.support.services import running, until

IDLE = State(agent_id="agent", connected=True, draining=False, slots=2, running=0, ended={})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


async def asked(port: int, path: str, method: str = "GET") -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.request(method, f"http://127.0.0.1:{port}{path}")


async def said(port: int, data: bytes) -> bytes:
    """The whole answer to these bytes, after which the agent has closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_ready_and_the_status_of_the_connection_follow_it(base: Path, orchestrator: Orchestrator) -> None:
    port = free_port()
    async with agent_process.running(base, orchestrator.url, {"KICI_AGENT_HTTP": str(port)}) as agent:
        await orchestrator.until(lambda: orchestrator.heartbeats, "a heartbeat")
        health = (await asked(port, "/health")).json()
        assert (health["status"], health["agentId"], health["activeJobs"]) == ("ok", "agent", 0)
        assert (await asked(port, "/ready")).status_code == 200
        assert "kici_agent_connection_status 1\n" in (await asked(port, "/metrics")).text
        orchestrator.refuse = (1013, "later")
        orchestrator.cut()

        async def not_ready() -> bool:
            return (await asked(port, "/ready")).status_code == 503

        await until(not_ready)
        assert "kici_agent_connection_status 0\n" in (await asked(port, "/metrics")).text
        assert (await asked(port, "/health")).status_code == 200
        assert "kat_" not in agent.log()


async def test_a_port_in_use_ends_the_agent_before_it_connects(base: Path, orchestrator: Orchestrator) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with agent_process.running(base, orchestrator.url, {"KICI_AGENT_HTTP": str(port)}) as agent:
            assert await agent.ended() == 1
    assert f"error: KICI_AGENT_HTTP: 127.0.0.1 port {port} cannot be used" in agent.log()
    assert orchestrator.hellos == []


async def test_jobs_are_counted_by_how_they_ended() -> None:
    state = State(
        agent_id="agent", connected=True, draining=True, slots=3, running=1, ended={"failed": 2, "success": 5}
    )
    listener = listening(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    async with running(Endpoints(listener, lambda: state)):
        lines = (await asked(port, "/metrics")).text.splitlines()
        assert [line for line in lines if not line.startswith("#")] == [
            'kici_agent_jobs_total{status="failed"} 2',
            'kici_agent_jobs_total{status="success"} 5',
            "kici_agent_jobs_active 1",
            "kici_agent_slots 3",
            "kici_agent_connection_status 1",
            "kici_agent_draining 1",
        ]
        assert (await asked(port, "/ready")).status_code == 503  # it takes no jobs


async def test_other_paths_methods_and_nonsense_get_no_more_than_an_error() -> None:
    listener = listening(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    async with running(Endpoints(listener, lambda: IDLE)):
        assert (await asked(port, "/")).status_code == 404
        assert (await asked(port, "/health?x=1")).status_code == 200
        assert (await asked(port, "/health", "POST")).status_code == 405
        assert (await asked(port, "/health", "HEAD")).content == b""
        assert (await said(port, b"\xff\xfe\r\n\r\n")).startswith(b"HTTP/1.1 405")
        assert await said(port, b"GET /" + b"a" * 20_000) == b""
        assert (await asked(port, "/ready")).status_code == 200


async def test_who_sends_nothing_does_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kici.agent.endpoints.REQUEST_S", 0.2)
    listener = listening(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    async with running(Endpoints(listener, lambda: IDLE)):
        silent: list[Any] = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        for reader, writer in silent:
            assert await reader.read() == b""
            writer.close()
        assert (await asked(port, "/ready")).status_code == 200


async def test_an_address_that_is_not_ours_is_named() -> None:
    with pytest.raises(SettingsInvalid, match=r"KICI_AGENT_HTTP: 192\.0\.2\.1 port 9100"):
        listening(("192.0.2.1", 9100))
