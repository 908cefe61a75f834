"""The tokens that are given from outside, so that somebody can get in at all."""

from __future__ import annotations

from pathlib import Path

import structlog

from kici.orchestrator.identity.tokens import AGENT_PREFIX, SHOWN, digest
from kici.orchestrator.settings import Settings, SettingsError
from kici.orchestrator.store import tokens
from kici.orchestrator.store.database import Db

log = structlog.get_logger(__name__)

LEAST = 32
"""Characters of a bootstrap token: fewer can be guessed."""


async def bootstrap(db: Db, settings: Settings) -> None:
    """Upsert the bootstrap admin token and the bootstrap agent token, as far as they are set."""
    admin = settings.bootstrap_admin_token
    if not admin and settings.bootstrap_admin_token_file is not None:
        admin = _read(settings.bootstrap_admin_token_file, "KICI_BOOTSTRAP_ADMIN_TOKEN_FILE")
    if admin:
        if len(admin) < LEAST:
            raise SettingsError(f"KICI_BOOTSTRAP_ADMIN_TOKEN is too short: it needs {LEAST} characters (try 64 hex)")
        await tokens.put_bootstrap(db, digest(admin))
    if settings.bootstrap_agent_token_file is not None:
        agent = _read(settings.bootstrap_agent_token_file, "KICI_BOOTSTRAP_AGENT_TOKEN_FILE")
        if not agent.startswith(AGENT_PREFIX) or len(agent) < LEAST:
            raise SettingsError(
                f"KICI_BOOTSTRAP_AGENT_TOKEN_FILE: an agent token is {AGENT_PREFIX!r} and 64 hexadecimal digits"
            )
        await tokens.put_agent(db, digest(agent), prefix=agent[:SHOWN], created_by="bootstrap")


def _read(path: Path, variable: str) -> str:
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise SettingsError(f"{variable}: {path} cannot be read: {error.strerror}") from error
    if not token:
        raise SettingsError(f"{variable}: {path} is empty")
    return token
