"""The bare repository that `kici up` offers: kept on disk, and known as a source whose hook signs its pushes."""

from __future__ import annotations

import secrets as random
from pathlib import Path

from asyncpg import Pool, Record
from msgspec import Struct

from kici.forges.git import repository
from kici.forges.local import hook_files
from kici.forges.local.hook_files import HookConfig
from kici.orchestrator.intake.internal_source import register_internal_source
from kici.orchestrator.intake.sources import Sources
from kici.orchestrator.secrets.scoped import ScopedSecrets

OWNER = "local"


class LocalRepository(Struct, frozen=True):
    name: str
    """Also the name of its source."""
    directory: Path

    @property
    def identifier(self) -> str:
        """As events and runs show it."""
        return f"{OWNER}/{self.name}"

    @property
    def spool(self) -> Path:
        """Pushes that its hook could not deliver."""
        return hook_files.spool_directory(self.directory)


async def offer(
    local: LocalRepository, pool: Pool[Record], scoped: ScopedSecrets, sources: Sources, *, public_url: str
) -> None:
    """Make or refresh the repository, its hook and its source. The hook's secret stays the same over restarts."""
    try:
        secret = hook_files.read_config(local.directory).secret
    except (OSError, ValueError):
        secret = random.token_hex(32)
    url = f"{public_url.rstrip('/')}/webhook/{local.name}"
    await repository.keep(local.directory, HookConfig(url, secret, local.identifier))
    await register_internal_source(pool, scoped, sources, name=local.name, secret=secret)
