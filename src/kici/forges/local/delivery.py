"""What the hook of a local repository sends and the orchestrator reads: names of headers and fields, once for both.

The hook is a program of its own that starts at every push, so it uses only the standard library.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

SIGNATURE: Final = "x-kici-signature-256"
EVENT: Final = "x-kici-event"
DELIVERY: Final = "x-kici-delivery"

PUSH: Final = "push"
CONTENT_TYPE: Final = "application/json"


def headers(delivery_id: str) -> dict[str, str]:
    return {"content-type": CONTENT_TYPE, EVENT: PUSH, DELIVERY: delivery_id}


def signature(secret: bytes, body: bytes) -> str:
    return "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
