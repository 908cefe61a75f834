from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support import stack
from tests.support.stack import Stack


@pytest.fixture
async def up() -> AsyncIterator[Stack]:
    """A running `kici up`."""
    async with stack.running() as started:
        yield started
