from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.agent_orchestrator import Orchestrator
from tests.support.web import Web


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory that other users may pass through (pytest's own belong to root alone)."""
    path = Path(tempfile.mkdtemp(prefix="kici-agent-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def web(base: Path) -> Iterator[Web]:
    with Web(base / "repositories").running() as running:
        yield running


@pytest.fixture
async def orchestrator() -> AsyncIterator[Orchestrator]:
    async with Orchestrator().running() as running:
        yield running
