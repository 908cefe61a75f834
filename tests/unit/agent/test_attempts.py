"""An agent that leaves sees to it that nothing of its jobs stays on the machine."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kici.agent import attempts
from kici.agent.attempts import Attempts, Identity
from kici.agent.job import Workshop
from kici.agent.settings import load
from kici.wire.agent import AttemptRef
from tests.support.services import running


class PlayedJob:
    """Tells its end at once; its directory is gone when `removed` is set."""

    def __init__(self, dispatch: Any, shop: Workshop) -> None:
        self.ref = AttemptRef(dispatch.job_id, dispatch.attempt)
        self.reported: Any = None
        self.ended: Any = None
        self.told, self.removed = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        self.reported = SimpleNamespace(
            body=None, outcome=asyncio.get_running_loop().create_future()
        )  # nobody acknowledges it
        self.told.set()
        await self.removed.wait()


async def test_it_is_idle_only_when_the_directory_of_a_job_that_has_told_its_end_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "Job", PlayedJob)
    anything: Any = None
    settings = load({"KICI_ORCHESTRATOR_URL": "ws://host:4000/ws"})
    shop = Workshop(
        settings,
        choice=anything,
        outbox=anything,
        silence=anything,
        standby=anything,
        dependencies=anything,
        mirrors=anything,
        hooks=anything,
    )
    crew = Attempts(Identity("boot", (), {}), shop, disk=str)
    dispatch: Any = SimpleNamespace(job_id="j", attempt=1)
    async with running(crew):
        await asyncio.sleep(0)
        crew.dispatched(dispatch)
        job: Any = crew._jobs[AttemptRef("j", 1)]
        await job.told.wait()
        idle = asyncio.ensure_future(crew.idle())
        await asyncio.sleep(0)
        assert crew.heartbeat(1).attempts == ()
        assert not idle.done()
        job.removed.set()
        await idle
