"""A data directory of the embedded PostgreSQL that is initialised and migrated once for each test process, to copy."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
from pathlib import Path

from kici.orchestrator.store import migrate
from kici.orchestrator.store.embedded import EmbeddedPostgres
from tests.support.postgres import memory

_made: Path | None = None
_making = asyncio.Lock()


async def copy_to(postgres: Path) -> None:
    """Fill `postgres`, an empty directory, as if a coordinator had been started and stopped there."""
    async with _making:
        source = await _make()
    for part in ("data", "password", "bin"):
        if (source / part).exists():
            await _run("cp", "-a", "--reflink=auto", str(source / part), str(postgres / part))


async def _make() -> Path:
    global _made
    if _made is None:
        folder = Path(tempfile.mkdtemp(prefix="kici-prepared-", dir=memory()))
        folder.chmod(0o711)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        server = EmbeddedPostgres(folder / "postgres", settings={"fsync": "off"}, sync_init=False)
        await server.start()
        try:
            await migrate.ensure(server.url)
        finally:
            await server.stop()
        _made = folder / "postgres"
    return _made


async def _run(*argv: str) -> None:
    process = await asyncio.create_subprocess_exec(*argv)
    if await process.wait():
        raise AssertionError(f"{argv} ended with {process.returncode}")
