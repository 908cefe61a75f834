"""Secrets by their address (org, scope, key)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kici.orchestrator.secrets.errors import SecretUnreadable
from kici.orchestrator.secrets.key_ring import KeyRing
from kici.orchestrator.store import secrets
from kici.orchestrator.store.database import Db

SYSTEM: Final = "__system__"
"""The org of what belongs to the orchestrator itself, such as the secrets of sources."""


class ScopedSecrets:
    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    def __repr__(self) -> str:
        return "ScopedSecrets()"

    async def put(self, db: Db, org: str, scope: str, key: str, value: str) -> None:
        sealed = self._keys.seal(org, scope, key, value.encode())
        await secrets.put(db, secrets.SealedSecret(org, scope, key, sealed, self._keys.current))

    async def read_scopes(
        self, db: Db, org: str, scopes: Sequence[str]
    ) -> Mapping[str, Mapping[str, str] | SecretUnreadable]:
        """Values by scope and key. A scope with a secret that cannot be read is the error: others do not suffer."""
        found: dict[str, dict[str, str] | SecretUnreadable] = {}
        for row in await secrets.of_scopes(db, org, scopes):
            of_scope = found.setdefault(row.scope, {})
            if isinstance(of_scope, SecretUnreadable):
                continue
            try:
                value = self._keys.open(row.org, row.scope, row.key, row.sealed, row.key_version)
            except SecretUnreadable as error:
                found[row.scope] = error
            else:
                of_scope[row.key] = value.decode()
        return found

    async def delete_scope(self, db: Db, org: str, scope: str) -> None:
        await secrets.delete_scope(db, org, scope)
