"""Brings a database to the schema of this build.

Alembic costs 22 MB, so the orchestrator only compares two revisions, and starts this module as a program where they
differ. Several coordinators may do so at once: one migrates, the others wait and find nothing to do.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import asyncpg
import structlog

from kici.orchestrator.errors import OrchestratorError
from kici.subprocesses import started

log = structlog.get_logger(__name__)

FOLDER = Path(__file__).parent / "migrations"
URL_VARIABLE = "KICI_DATABASE_URL"
LOCK = 543210001
"""Advisory lock of whoever migrates."""
LOCK_TRIES = 15
"""Of a step that could not lock a table within `lock_timeout`."""


class MigrationError(OrchestratorError):
    code = "migration_failed"


def head() -> str:
    """The revision of this build."""
    return revisions()[-1]


def revisions() -> list[str]:
    """All revisions, oldest first. They are numbers with leading zeros, so they sort."""
    return sorted(path.name.split("_")[0] for path in (FOLDER / "versions").glob("*.up.sql"))


async def stored_revision(url: str) -> str | None:
    """The revision of the database; None if it is empty. Raises `MigrationError` for a database of the original."""
    db = await asyncpg.connect(url, timeout=5, statement_cache_size=0)
    try:
        if await db.fetchval("select to_regclass('alembic_version') is null"):
            if await db.fetchval("select to_regclass('kysely_migration') is not null"):
                raise MigrationError(
                    "this database was made by the original KiCI (it has the table kysely_migration): it is not"
                    " migrated; give kici an empty database of its own"
                )
            return None
        revision: str | None = await db.fetchval("select version_num from alembic_version")
        return revision
    finally:
        await db.close()


async def ensure(url: str, *, auto: bool = True) -> None:
    """Migrate to this build's schema if the database is older. A newer one is left as it is: it still serves us."""
    stored, wanted = await stored_revision(url), head()
    if stored == wanted:
        return
    if stored is not None and stored > wanted:
        log.warning("the database is newer than this program", stored=stored, ours=wanted)
        return
    if not auto:
        raise MigrationError(
            f"the database is at revision {stored or 'none'}, this program needs {wanted}: run `kici-admin db migrate`,"
            " or set KICI_AUTO_MIGRATE=true"
        )
    await run(url, "upgrade", wanted)
    log.info("migrated the database", before=stored, now=wanted)


async def run(url: str, direction: str, revision: str) -> None:
    """`upgrade` or `downgrade` to `revision` (`base` = nothing) in a child process."""
    async with started(
        sys.executable,
        *("-m", __name__, direction, revision),
        env=os.environ | {URL_VARIABLE: url},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    ) as process:
        said, _ = await process.communicate()
    if process.returncode != 0:
        raise MigrationError(f"the database was not migrated: {said.decode(errors='replace').strip()[-2000:]}")


def main() -> None:
    """`python -m kici.orchestrator.store.migrate upgrade|downgrade REVISION [--sql]`, the URL in the environment."""
    import psycopg
    from alembic import command
    from alembic.config import Config
    from sqlalchemy.exc import DBAPIError

    direction, revision, *flags = sys.argv[1:]
    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["url"] = os.environ[URL_VARIABLE]
    step = {"upgrade": command.upgrade, "downgrade": command.downgrade}[direction]
    for tries_left in reversed(range(LOCK_TRIES)):
        try:
            step(config, revision, sql="--sql" in flags)
        except DBAPIError as error:
            if tries_left and isinstance(error.orig, psycopg.errors.LockNotAvailable):
                time.sleep(1)  # a busy table; steps that were done stay done
                continue
            sys.exit(str(error.orig).strip())
        except psycopg.Error as error:
            sys.exit(str(error).strip())
        return


if __name__ == "__main__":
    main()
