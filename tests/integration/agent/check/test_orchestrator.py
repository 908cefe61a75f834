"""What fails at the orchestrator: tokens, labels, the object store, versions, clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from kici.agent.check import orchestrator
from kici.agent.check.hop import Status
from kici.agent.check.known import Known
from kici.wire.agent_api import AgentCheck
from tests.integration.agent.check.conftest import There, check
from tests.support import front

NOW = datetime(2026, 12, 3, 8, 0, tzinfo=UTC)
ANSWER = AgentCheck(
    version="1", protocol_min=1, protocol_max=1, token_prefix="kat_", labels=None, refused_labels=[], agent_id="free",
    clock=NOW,
)  # fmt: skip


async def test_only_a_token_of_an_agent_is_told_about(there: There) -> None:
    url = f"{there.of.http_url}/api/v1/agent/check"
    async with httpx.AsyncClient() as client:
        assert (await client.get(url)).status_code == 401
        for token in ("1" * 64, "kjt_" + "7" * 64):
            assert (await client.get(url, headers={"authorization": f"Bearer {token}"})).status_code == 401


@pytest.mark.parametrize("kind", ["unknown", "revoked", "none"])
async def test_a_token_that_opens_nothing_is_told(base: Path, there: There, kind: str) -> None:
    token = {"unknown": "kat_" + "0" * 64, "none": ""}.get(kind) or ""
    if kind == "revoked":
        token = await there.of.agent_token()
        await there.of.pool.execute("update agent_tokens set revoked_at = now()")
    said = await check(base, there.of.url, token)
    told = (
        "neither KICI_AGENT_TOKEN nor KICI_AGENT_TOKEN_FILE is set"
        if kind == "none"
        else "the agent token is unknown, revoked or expired: make a new one"
    )
    assert said.failed() == f"token: {told} → make one: kici-admin agent register"
    assert said.hops["labels"]["told"] == "needs token, which is not ok"


async def test_labels_that_the_token_does_not_grant_are_named(base: Path, there: There) -> None:
    token = await there.of.agent_token(["gpu"])
    said = await check(base, there.of.url, token, KICI_LABELS="gpu,prod")
    assert said.failed().startswith("labels: the token does not grant prod → take them out of KICI_LABELS, or")
    assert said.hops["token"]["told"] == f"{token[:12]}… is valid, and grants labels: gpu"


async def test_an_object_store_that_cannot_be_used_is_told(base: Path, there: There) -> None:
    there.objects.rmdir()
    there.objects.write_text("in the way")
    said = await check(base, there.of.url, await there.of.agent_token())
    assert said.failed().startswith("storage: artifacts and caches: ")


async def test_an_orchestrator_that_is_older_and_cannot_be_asked_is_no_failure(base: Path, there: There) -> None:
    token = await there.of.agent_token()
    async with front.WithoutPath(there.port, "/api/v1/agent/check") as between:
        said = await check(base, f"ws://127.0.0.1:{between.port}/ws", token)
    assert said.code == 0
    assert said.statuses["token"] == said.statuses["labels"] == "skipped"
    assert "older than this agent" in said.hops["token"]["told"]


@pytest.mark.parametrize(
    ("ahead_s", "status"), [(0.5, Status.OK), (-1.9, Status.OK), (3, Status.WARN), (-60, Status.WARN)]
)
async def test_a_wrong_clock_is_a_warning_with_its_number(ahead_s: float, status: Status) -> None:
    known = Known({})
    known.answer, known.asked_at = ANSWER, (NOW + timedelta(seconds=ahead_s)).timestamp()
    found = await orchestrator.clock(known)
    assert found.status is status
    assert f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the database's" in found.told


async def test_a_protocol_that_nobody_shares_is_told_with_both_ranges() -> None:
    known = Known({})
    known.answer = replace(ANSWER, protocol_min=7, protocol_max=9)
    found = await orchestrator.protocol(known)
    assert found.status is Status.FAIL
    assert "the orchestrator 7 to 9" in found.told
