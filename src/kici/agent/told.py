"""What a step asks the orchestrator to keep: secret outputs and events. Small, and safe to ask for twice."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from kici.agent.job_api import JobApi
from kici.wire.agent_api import Emit, Emitted


async def hand_over(api: JobApi, name: str, value: str) -> None:
    """Keep a secret output. Raises `TransferFailed`, which never says the value."""
    what = f"secret output {name[:100]!r} was not kept"
    await api.repeated("PUT", f"secret-outputs/{quote(name, safe='')}", what, content=value.encode(errors="replace"))


async def emit(api: JobApi, name: str, payload: Any, key: str) -> str:
    """The id of the event. Raises `TransferFailed`."""
    what = f"event {name[:200]!r} was not emitted"
    body = msgspec.json.encode(Emit(name, payload, key))
    response = await api.repeated("POST", "events", what, content=body, headers={"content-type": "application/json"})
    return msgspec.json.decode(response.content, type=Emitted).event_id
