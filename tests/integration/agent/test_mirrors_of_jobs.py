"""An agent process in its sandbox, and the mirrors that its jobs leave."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from kici.agent.mirror_places import NAME
from kici.agent.sandbox.choose import choose
from kici.engine.events import Event, EventType
from kici.wire.agent import Checkout, Dispatch
from kici.wire.context import JobContext
from tests.support import agent_process
from tests.support.agent_orchestrator import Orchestrator
from tests.support.agent_process import AgentProcess
from tests.support.kici_repository import KiciRepository
from tests.support.web import Web

BIG = 200_000
pytestmark = pytest.mark.skipif(choose("auto").sandbox.name != "bubblewrap", reason="bubblewrap does not work here")


def dispatch(web: Web, repository: KiciRepository, number: int, *, trusted: bool = True) -> Dispatch:
    job = f"0f0f0f0f-0000-0000-0000-{number:012}"
    event = Event(EventType.PUSH, branch="main", sha=repository.sha, repo="me/repo")
    context = JobContext("run", job, 1, "ci", "build", "build", event)
    web.contexts[job] = msgspec.msgpack.encode(context)
    return Dispatch(
        *("run", job, 1, "ci", "build", "build"),
        checkout=Checkout(f"{web.url}/git/repo/.git", repository.sha, repository.sha, trusted=trusted),
        lock_sha256=repository.lock_sha256,
        job_token="kjt_" + "fedcba9876543210" * 4,
        context=context,
    )


@asynccontextmanager
async def running(base: Path) -> AsyncIterator[tuple[Orchestrator, AgentProcess]]:
    """At the end the agent is killed."""
    async with (
        Orchestrator().running() as orchestrator,
        agent_process.running(base, orchestrator.url, {"KICI_SANDBOX": "bubblewrap"}) as agent,
    ):
        yield orchestrator, agent


def filled(web: Web, *commands: str) -> KiciRepository:
    repository = KiciRepository(web.repositories / "repo", {"build": commands})
    (repository.root / "big").write_bytes(os.urandom(BIG))
    repository.commit()
    return repository


async def test_jobs_use_what_an_earlier_agent_has_kept_and_their_steps_find_a_plain_repository(
    web: Web,
) -> None:
    base = web.repositories.parent
    repository = filled(
        web,
        f"test ! -e {base}/work/{NAME} && echo unseen",
        "for file in .git/objects/pack/*; do (echo evil >> $file) 2>/dev/null && echo written; done; echo tried",
        "git -c safe.directory=* fsck --full && git -c safe.directory=* gc --quiet && echo plain",
    )
    for number in range(3):
        repository.write({"small": f"{number}\n"})
        repository.commit()
        sent = web.git_bytes
        # A new agent each time, and the one before was killed.
        async with running(base) as (orchestrator, agent):
            for second in (False, True):
                one = dispatch(web, repository, 2 * number + second)
                await orchestrator.send(one)
                end = await orchestrator.end(one.job_id)
                assert (end.status, end.error) == ("success", ""), agent.log()
                assert "unseen" in await orchestrator.log(one.job_id, 0)
                tried = await orchestrator.log(one.job_id, 1)
                assert "tried" in tried
                # Where a job is the agent's own user what it has is a copy, which is its own.
                assert os.geteuid() != 0 or "written" not in tried
                assert "plain" in await orchestrator.log(one.job_id, 2)
            assert "broken" not in agent.log()
        assert (web.git_bytes - sent > BIG) == (number == 0)


async def test_a_mirror_that_broke_while_no_agent_ran_is_told_in_both_logs(
    web: Web,
) -> None:
    base = web.repositories.parent
    repository = filled(web, "true")
    for number in range(2):
        async with running(base) as (orchestrator, agent):
            one = dispatch(web, repository, number)
            await orchestrator.send(one)
            assert (await orchestrator.end(one.job_id)).status == "success", agent.log()
            if number:
                said = await orchestrator.log(one.job_id, -1, "fetching it anew")
                assert "what this agent has kept of " in said
                assert "a mirror was broken and is made again" in agent.log()
        (place,) = (base / "work" / NAME / "trusted").iterdir()
        _damage(place)


def _damage(place: Path) -> None:
    pack = next(place.glob("*.pack"))
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.chmod(0o644)
    pack.write_bytes(data)
