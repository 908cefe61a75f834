"""What the job knows about its run: inside the dispatch, or fetched when it is too large for a message or holds
secrets."""

from __future__ import annotations

import msgspec

from kici.agent.errors import PreparationFailed, TransferFailed
from kici.agent.job_api import JobApi
from kici.wire.agent import Dispatch
from kici.wire.context import AgentFacts, JobContext


async def load(dispatch: Dispatch, api: JobApi, agent: AgentFacts) -> JobContext:
    """With what this agent knows of itself. Raises `PreparationFailed`."""
    known = dispatch.context or await _fetch(api)
    return msgspec.structs.replace(known, agent=agent)


async def _fetch(api: JobApi) -> JobContext:
    try:
        response = await api.repeated("GET", "context", "the job's context could not be fetched")
    except TransferFailed as error:
        raise PreparationFailed(str(error)) from error
    try:
        return msgspec.msgpack.decode(response.content, type=JobContext)
    except msgspec.DecodeError as error:
        raise PreparationFailed(f"the job's context cannot be read: {error}") from error
