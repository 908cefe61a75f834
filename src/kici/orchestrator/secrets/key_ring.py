"""Encryption of secrets: AES-256-GCM under a key of the secret's scope, which HKDF derives from a master key.

The address of a secret, `<org>:<scope>:<key>`, is authenticated with it, so a value that somebody moves to another row
does not decrypt. A row names the version of the master key that it was encrypted under.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from kici.orchestrator.secrets.errors import SecretUnreadable

KEY_BYTES: Final = 32
_NONCE_BYTES = 12
_TAG_BYTES = 16


class KeyRing:
    """Master keys by version. The highest one encrypts, each decrypts what was encrypted under it."""

    __slots__ = ("_keys", "current")

    def __init__(self, keys: Mapping[int, bytes]) -> None:
        self._keys = dict(keys)
        self.current = max(self._keys)

    def __repr__(self) -> str:
        return f"KeyRing(versions={sorted(self._keys)})"

    def __reduce__(self) -> str:
        raise TypeError("a key ring does not leave its process")

    def seal(self, org: str, scope: str, key: str, value: bytes) -> str:
        """base64 of nonce, tag and ciphertext."""
        nonce = os.urandom(_NONCE_BYTES)
        encrypted = self._cipher(self.current, org, scope).encrypt(nonce, value, _address(org, scope, key))
        ciphertext, tag = encrypted[:-_TAG_BYTES], encrypted[-_TAG_BYTES:]
        return base64.b64encode(nonce + tag + ciphertext).decode()

    def open(self, org: str, scope: str, key: str, sealed: str, version: int) -> bytes:
        """Raises `SecretUnreadable`."""
        where = f"{org}:{scope}:{key}"
        if version not in self._keys:
            raise SecretUnreadable(f"the secret {where} needs version {version} of the master key, which is not set")
        try:
            stored = base64.b64decode(sealed, validate=True)
        except (binascii.Error, ValueError):
            raise SecretUnreadable(f"the stored secret {where} is not base64") from None
        nonce, rest = stored[:_NONCE_BYTES], stored[_NONCE_BYTES:]
        tag, ciphertext = rest[:_TAG_BYTES], rest[_TAG_BYTES:]
        try:
            return self._cipher(version, org, scope).decrypt(nonce, ciphertext + tag, _address(org, scope, key))
        except (InvalidTag, ValueError):
            raise SecretUnreadable(
                f"the secret {where} was encrypted under another master key, or its row was changed"
            ) from None

    def _cipher(self, version: int, org: str, scope: str) -> AESGCM:
        info = b"\0".join((b"kici scoped secret", org.encode(), scope.encode()))
        return AESGCM(HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(self._keys[version]))


def _address(org: str, scope: str, key: str) -> bytes:
    return f"{org}:{scope}:{key}".encode()
