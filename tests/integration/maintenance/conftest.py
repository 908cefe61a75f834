from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kici.orchestrator.agents.contract import Settings
from kici.orchestrator.store.lease import Lease
from kici.wire.agent import Dispatch
from tests.support import coordinator
from tests.support.coordinator import Coordinator
from tests.support.fake_agent import FakeAgent


@pytest.fixture
async def here(database_url: str) -> AsyncIterator[Coordinator]:
    async with coordinator.running(database_url, settings=Settings(silent_s=600, ack_timeout_s=600)) as one:
        yield one


@pytest.fixture
async def held(here: Coordinator) -> Lease:
    return await here.leads()


async def dispatched(here: Coordinator, agent: FakeAgent, number: int = 1) -> Dispatch:
    here.notifier.send("kici_queue")
    return await agent.expect(Dispatch, number)
