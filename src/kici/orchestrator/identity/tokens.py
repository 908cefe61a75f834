"""Bearer tokens: 256 random bits, shown once, stored as their SHA-256.

A token is found by its hash. That needs no comparison in constant time: what the time of an index look-up tells is
about the hash, and nobody can make a token that has a wanted hash.
"""

from __future__ import annotations

import secrets
from datetime import datetime
from hashlib import sha256

from msgspec import Struct

from kici.orchestrator.errors import Invalid
from kici.orchestrator.identity.roles import ROLES
from kici.orchestrator.store import tokens
from kici.orchestrator.store.database import Db

AGENT_PREFIX = "kat_"
JOB_PREFIX = "kjt_"
SHOWN = 12
"""How many characters of an agent token are kept, to tell it from others in a list."""


class Created(Struct, frozen=True):
    id: str
    token: str
    """The only time that it is seen."""

    def __repr__(self) -> str:
        return f"Created(id={self.id!r})"


def digest(token: str) -> str:
    """As stored in the database: SHA-256, hexadecimal."""
    return sha256(token.encode()).hexdigest()


def new_admin_token() -> str:
    return secrets.token_hex(32)


def new_agent_token() -> str:
    return AGENT_PREFIX + secrets.token_hex(32)


def new_job_token() -> str:
    return JOB_PREFIX + secrets.token_hex(32)


async def create_admin(
    db: Db, *, label: str, role: str, routing_key: str | None = None, expires_at: datetime | None = None
) -> Created:
    """A new admin token. Raises `Invalid` for an unknown role or a label that is reserved."""
    if role not in ROLES:
        raise Invalid(f"there is no role {role!r}: choose one of {', '.join(ROLES)}")
    if not 1 <= len(label) <= 255 or label == tokens.BOOTSTRAP:
        raise Invalid(f"a label has 1 to 255 characters and is not {tokens.BOOTSTRAP!r}")
    token = new_admin_token()
    token_id = await tokens.create_admin(
        db, digest(token), label=label, role=role, routing_key=routing_key, expires_at=expires_at
    )
    return Created(token_id, token)


async def create_agent(db: Db, *, labels: list[str] | None, created_by: str) -> Created:
    """A new agent token. `labels` bounds what agents with it may offer, beside the automatic ones; None = any."""
    token = new_agent_token()
    token_id = await tokens.create_agent(db, digest(token), prefix=token[:SHOWN], labels=labels, created_by=created_by)
    return Created(token_id, token)
