from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support import coordinator
from tests.support.coordinator import Coordinator


@pytest.fixture
async def here(database_url: str) -> AsyncIterator[Coordinator]:
    async with coordinator.running(database_url) as one:
        yield one
