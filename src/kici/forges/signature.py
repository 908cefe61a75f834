"""Proofs that a sender knows a secret. Comparisons take the same time however much of a guess is right."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from kici.forges.contract import BadSignature, Body

_PREFIX = "sha256="
_DIGEST_CHARACTERS = 64


def check_hmac_sha256(header: str, given: str | None, body: Body, secrets: Sequence[bytes], *, prefix: bool) -> None:
    """`given` is the header's value: hexadecimal, after `sha256=`, which may be left out unless `prefix`."""
    if not given:
        raise BadSignature(f"the header {header} with the body's HMAC-SHA256 is missing")
    if given.startswith(_PREFIX):
        given = given[len(_PREFIX) :]
    elif prefix:
        raise BadSignature(f"the header {header} does not start with {_PREFIX!r}")
    try:
        claimed = bytes.fromhex(given) if len(given) == _DIGEST_CHARACTERS else b""
    except ValueError:
        claimed = b""
    if not claimed:
        raise BadSignature(f"the header {header} does not hold an HMAC-SHA256 in hexadecimal")
    proven = False
    for secret in secrets:
        proven |= hmac.compare_digest(hmac.digest(secret, body, "sha256"), claimed)
    if not proven:
        raise BadSignature(f"the signature in {header} does not fit the body and this source's secret")


def check_key(header: str, given: str | None, secrets: Sequence[bytes]) -> None:
    """`given` is the key itself, optionally after `Bearer `."""
    if not given:
        raise BadSignature(f"the header {header} with the source's key is missing")
    scheme, _, rest = given.partition(" ")
    key = rest.strip() if scheme.lower() == "bearer" and rest else given
    claimed = hashlib.sha256(key.encode("latin-1", "replace")).digest()
    proven = False
    for secret in secrets:
        proven |= hmac.compare_digest(hashlib.sha256(secret).digest(), claimed)
    if not proven:
        raise BadSignature(f"the key in {header} is not this source's")
