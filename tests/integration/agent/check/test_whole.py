"""The whole check against a real orchestrator: what it says, and that it leaves everything as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kici.agent.check.command import HOPS
from tests.integration.agent.check.conftest import There, check, started
from tests.support import agent_process
from tests.support.fake_agent import FakeAgent, agents
from tests.support.services import until

LABELS = {"KICI_LABELS": "gpu,big"}


@pytest.mark.parametrize("sandbox", ["true", "false"])
async def test_where_everything_works_no_hop_fails(base: Path, there: There, sandbox: str) -> None:
    said = await check(base, there.of.url, await there.of.agent_token(), KICI_SANDBOX=sandbox, **LABELS)
    assert (said.code, said.err) == (0, "")
    assert list(said.hops) == [hop.name for hop in HOPS]
    assert said.document["ok"]
    expected = {} if sandbox == "true" else {"sandbox": "warn"}
    # What this machine has not is told, and no reason to fail.
    assert {name: status for name, status in said.statuses.items() if name not in ("uv", "zstd", "limits")} == expected
    assert "ran `true` in" in said.hops["job"]["told"]
    assert "gpu, big" in said.hops["labels"]["told"]


async def test_people_get_a_line_for_each_hop_without_colours_in_a_pipe_and_never_the_token(
    base: Path, there: There
) -> None:
    token = await there.of.agent_token(["gpu"])
    said = await started(base, there.of.url, token, LABELS)
    *lines, counts = said.out.splitlines()
    assert [line[9:].split("  ")[0] for line in lines] == [hop.name for hop in HOPS]
    assert {line.split()[0] for line in lines} <= {"ok", "warn", "fail", "skipped"}
    assert next(line for line in lines if line.startswith("fail")) == (
        "fail     labels          the token does not grant big → take them out of KICI_LABELS, or register a token:"
        " kici-admin agent register --labels big"
    )
    assert "1 fail" in counts
    assert said.code == 1
    assert "\x1b" not in said.out
    assert token not in said.out + said.err


async def test_nothing_is_left_behind(base: Path, there: There) -> None:
    token = await there.of.agent_token()
    before = await there.of.pool.fetchval("select count(*) from agent_tokens")
    said = await check(base, there.of.url, token, KICI_SANDBOX="true")
    assert said.code == 0
    assert await there.sessions() == []
    assert await there.of.pool.fetchval("select count(*) from agent_tokens") == before
    assert not (base / "work").exists()


async def test_a_living_agent_with_the_same_id_keeps_its_session_its_directory_and_its_runner(
    base: Path, there: There
) -> None:
    token = await there.of.agent_token()
    env = {"KICI_AGENT_TOKEN": token, "KICI_AGENT_ID": "box-1", "KICI_SANDBOX": "true"}
    async with agent_process.running(base, there.of.url, env) as agent:

        async def stands() -> bool:
            return bool(await there.sessions()) and bool(agent.runners())

        await until(stands)
        sessions, runners = await there.sessions(), agent.runners()
        files = {path for path in (base / "work").rglob("*") if path.is_dir()}
        said = await check(base, there.of.url, token, KICI_AGENT_ID="box-1", KICI_SANDBOX="true")
        assert said.code == 0
        assert "an agent uses it now" in said.hops["work directory"]["told"]
        assert "was left alone" in said.hops["id there"]["told"]
        assert await there.sessions() == sessions
        assert set(runners) <= set(agent.runners())
        assert {path for path in (base / "work").rglob("*") if path.is_dir()} == files
        assert agent.process.returncode is None
        (other,) = there.of.roster.all()
        assert other.link is not None


async def test_an_id_that_lives_under_another_token_is_told(base: Path, there: There) -> None:
    theirs = FakeAgent(there.of.url, await there.of.agent_token(), "box-1")
    async with agents(theirs):
        await theirs.connect()
        said = await check(base, there.of.url, await there.of.agent_token(), KICI_AGENT_ID="box-1")
        assert said.failed().startswith("id there: box-1 is connected with another token → set another KICI_AGENT_ID")
        await theirs.heartbeat()


async def test_arguments_that_it_does_not_know_are_refused(base: Path, there: There) -> None:
    said = await started(base, there.of.url, "", {}, "--jsno")
    assert (said.code, said.out) == (2, "")
    assert "error: unknown argument '--jsno'" in said.err
    helped = await started(base, there.of.url, "", {}, "--help")
    assert helped.code == 0
    assert "kici-agent check [--json]" in helped.out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's agent gives jobs users of their own")
async def test_a_root_agent_tells_the_users_of_its_slots(base: Path, there: There) -> None:
    said = await check(base, there.of.url, await there.of.agent_token(), KICI_SANDBOX="true", KICI_AGENT_SLOTS="3")
    assert said.hops["slots"]["told"] == "jobs run as uid 60706 to 60708, one for each slot"
    many = await check(base, there.of.url, await there.of.agent_token(), KICI_SANDBOX="true", KICI_AGENT_SLOTS="500")
    assert many.failed().startswith("settings: KICI_AGENT_SLOTS is 500: an agent has at most 475 slots")
