"""The requests that an attempt makes over HTTP, with the job's token: what is too large for the socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from kici.agent.errors import TransferFailed
from kici.wire.agent import Dispatch
from kici.wire.api import Problem

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 60.0
"""Of one read or write, not of a whole transfer."""
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Between the tries of a small request: the restart of an orchestrator must not fail a step."""


class JobApi:
    def __init__(self, orchestrator_url: str, dispatch: Dispatch) -> None:
        self.base = f"{orchestrator_url}/api/v1/agent/jobs/{dispatch.job_id}"
        self.attempt = dispatch.attempt
        self._token = dispatch.job_token

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """Raises `TransferFailed` in place of what can happen on the way."""
        # 10 MB of memory that an idle agent does not need.
        import httpx

        try:
            async with httpx.AsyncClient(
                headers={"authorization": f"Bearer {self._token}"},
                params={"attempt": self.attempt},
                timeout=TIMEOUT_S,
                follow_redirects=False,
            ) as client:
                yield client
        except httpx.HTTPError as error:
            raise TransferFailed(f"the orchestrator did not answer: {error or type(error).__name__}") from error

    async def repeated(
        self,
        method: str,
        path: str,
        what: str,
        *,
        content: bytes | None = None,
        params: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> httpx.Response:
        """A small request that may be made twice: again and again while nobody answers, or only that it cannot be now.

        Raises `TransferFailed`: `what` is the beginning of its sentence.
        """
        for pause_s in (*pauses_s, None):
            try:
                async with self.client() as client:
                    url = f"{self.base}/{path}"
                    response = await client.request(method, url, content=content, params=params, headers=headers)
            except TransferFailed as error:
                if pause_s is None:
                    raise TransferFailed(f"{what}: {error}") from error
            else:
                if response.status_code < 500 or pause_s is None:
                    await check(response, what)
                    return response
            await asyncio.sleep(pause_s)
        raise AssertionError


async def check(response: httpx.Response, what: str) -> None:
    """Raises `TransferFailed` with the orchestrator's own words, unless it is a success."""
    if response.is_success:
        return
    body = await response.aread()
    try:
        said = msgspec.json.decode(body, type=Problem).error
    except msgspec.DecodeError:
        said = f"status {response.status_code}"
    raise TransferFailed(f"{what}: {said}")
