"""What fails on the way to the orchestrator: each with the hop that tells it, and the way out."""

from __future__ import annotations

import socket
from base64 import b64encode
from pathlib import Path

import pytest

from tests.integration.agent.check.conftest import There, check
from tests.support import front
from tests.support.certificates import authority
from tests.support.relay import Relay

AFTER_TCP = {"tunnel", "tls", "http", "ready", "websocket", "token", "labels", "id there", "protocol", "clock"}


async def test_a_closed_port_is_told_and_what_needs_it_is_skipped(base: Path, there: There) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        said = await check(base, f"ws://127.0.0.1:{bound.getsockname()[1]}", "")
    assert said.failed().startswith("tcp: ")
    assert said.failed().endswith("→ is it started, and does a firewall let this machine through?")
    skipped = {name for name, status in said.statuses.items() if status == "skipped"}
    assert skipped == AFTER_TCP | {"storage", "git there"}
    assert said.hops["clock"]["told"] == "needs tcp, which is not ok"
    assert said.hops["job"]["status"] == "ok"


async def test_a_name_without_an_address_is_told(base: Path) -> None:
    said = await check(base, "wss://nowhere.invalid/ws", "")
    assert said.failed().startswith("dns: nowhere.invalid has no address")


@pytest.mark.parametrize(
    ("bundle", "told"),
    [("right", ""), ("wrong", "KICI_CA_BUNDLE"), ("", "KICI_CA_BUNDLE")],
)
async def test_certificates_are_believed_by_the_bundle(base: Path, there: There, bundle: str, told: str) -> None:
    tls = authority(base / "right.pem")
    authority(base / "wrong.pem")
    given = {"KICI_CA_BUNDLE": str(base / f"{bundle}.pem")} if bundle else {}
    async with Relay(there.port, tls) as relay:
        said = await check(base, f"wss://127.0.0.1:{relay.port}/ws", await there.of.agent_token(), **given)
    if told:
        assert said.failed().startswith("tls: the certificate of 127.0.0.1 is not accepted: ")
        assert told in said.failed()
    else:
        assert said.code == 0
        assert "the certificate is valid for 90 days, until" in said.hops["tls"]["told"]
        assert said.hops["git there"]["told"] == "git reaches the orchestrator, which asks for a job's token"


@pytest.mark.parametrize(
    ("of", "days", "told"),
    [
        ("127.0.0.1", -1, "tls: the certificate of 127.0.0.1 is not accepted: certificate has expired → renew"),
        ("other.example", 90, "tls: the certificate of 127.0.0.1 is not accepted: IP address mismatch"),
    ],
)
async def test_certificates_that_have_ended_or_are_for_another_name_are_told(
    base: Path, there: There, of: str, days: float, told: str
) -> None:
    tls = authority(base / "ca.pem", of=of, days=days)
    async with Relay(there.port, tls) as relay:
        said = await check(base, f"wss://127.0.0.1:{relay.port}/ws", "", KICI_CA_BUNDLE=str(base / "ca.pem"))
    assert said.failed().startswith(told)
    assert "→ write a name into KICI_ORCHESTRATOR_URL" in said.failed() or days < 0


async def test_a_certificate_that_ends_soon_is_a_warning(base: Path, there: There) -> None:
    tls = authority(base / "ca.pem", days=5.5)
    async with Relay(there.port, tls) as relay:
        token = await there.of.agent_token()
        said = await check(base, f"wss://127.0.0.1:{relay.port}/ws", token, KICI_CA_BUNDLE=str(base / "ca.pem"))
    assert said.code == 0
    assert said.hops["tls"]["status"] == "warn"
    assert said.hops["tls"]["wayOut"] == "renew it"


async def test_a_port_that_speaks_no_tls_is_told(base: Path, there: There) -> None:
    said = await check(base, there.of.url.replace("ws", "wss", 1), "")
    assert said.failed().startswith("tls: no TLS with 127.0.0.1")
    assert said.failed().endswith("is that port TLS? Without it write ws://")


@pytest.mark.parametrize("login", ["", "user:secret-word"])
async def test_through_a_proxy_everything_works_and_its_password_is_never_told(
    base: Path, there: There, login: str
) -> None:
    proxy = front.Proxy(b64encode(login.encode()).decode() if login else "")
    async with proxy:
        way = f"http://{login}@127.0.0.1:{proxy.port}" if login else proxy.url
        said = await check(base, there.of.url, await there.of.agent_token(), http_proxy=way)
    assert (said.code, said.statuses.keys() - {"uv", "zstd", "limits"}) == (0, {"sandbox"})
    assert said.hops["proxy"]["told"] == f"127.0.0.1:{proxy.port}"
    assert f"CONNECT 127.0.0.1:{there.port} HTTP/1.1" in proxy.asked
    assert "secret-word" not in said.out + said.err


async def test_a_proxy_that_says_no_is_told_and_no_proxy_leads_past_it(base: Path, there: There) -> None:
    async with front.Proxy("another") as proxy:
        given = {"http_proxy": proxy.url}
        said = await check(base, there.of.url, "", **given)
        assert said.failed() == (
            "tunnel: the proxy says no: HTTP/1.1 407 Proxy Authentication Required"
            " → the proxy must allow CONNECT to the orchestrator"
        )
        past = await check(base, there.of.url, await there.of.agent_token(), **given, no_proxy="127.0.0.1")
    assert past.code == 0
    assert past.hops["proxy"]["told"] == "none on the way"


async def test_a_proxy_of_another_kind_is_told(base: Path, there: There) -> None:
    said = await check(base, there.of.url, "", all_proxy="socks5://127.0.0.1:1080")
    assert said.failed().startswith("proxy: ALL_PROXY is not the address of an http:// proxy")


async def test_an_address_that_is_no_orchestrators_is_told(base: Path, there: There) -> None:
    said = await check(base, there.of.url.replace("/ws", "/kici/ws"), "")
    assert "answers 404, not as an orchestrator does → correct KICI_ORCHESTRATOR_URL's path" in said.failed()


async def test_a_front_that_passes_no_upgrade_on_is_told(base: Path, there: There) -> None:
    async with front.WithoutUpgrade(there.port) as between:
        said = await check(base, f"ws://127.0.0.1:{between.port}/ws", await there.of.agent_token())
    assert said.failed().startswith("websocket: ")
    assert said.failed().endswith("→ whatever stands in front must pass `Upgrade` on")


async def test_an_orchestrator_that_is_not_ready_says_what_it_lacks(base: Path, there: There) -> None:
    there.lease_valid = False
    said = await check(base, there.of.url, await there.of.agent_token())
    assert said.failed().startswith("ready: the orchestrator is not ready: lease")
