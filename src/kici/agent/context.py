"""What the job knows about its run: inside the dispatch, or fetched when it is too large for a message or holds
secrets."""

from __future__ import annotations

import asyncio

import msgspec

from kici.agent.errors import PreparationFailed, TransferFailed
from kici.agent.job_api import JobApi, check
from kici.wire.agent import Dispatch
from kici.wire.context import AgentFacts, JobContext

TRIES = 3


async def load(dispatch: Dispatch, api: JobApi, agent: AgentFacts) -> JobContext:
    """With what this agent knows of itself. Raises `PreparationFailed`."""
    known = dispatch.context or await _fetch_again(api)
    return msgspec.structs.replace(known, agent=agent)


async def _fetch_again(api: JobApi) -> JobContext:
    for tries_left in reversed(range(TRIES)):
        try:
            return await _fetch(api)
        except TransferFailed as error:
            if not tries_left:
                raise PreparationFailed(f"the job's context could not be fetched: {error}") from error
            await asyncio.sleep(1.0)
    raise AssertionError


async def _fetch(api: JobApi) -> JobContext:
    async with api.client() as client:
        response = await client.get(f"{api.base}/context")
        await check(response, "the job's context was refused")
        try:
            return msgspec.msgpack.decode(response.content, type=JobContext)
        except msgspec.DecodeError as error:
            raise TransferFailed(f"the job's context cannot be read: {error}") from error
