"""The requests that an attempt makes over HTTP, with the job's token: what is too large for the socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import msgspec

from kici.agent.errors import NoAnswer, TransferFailed
from kici.authorities import tls_context
from kici.wire.agent import Dispatch
from kici.wire.api import Problem

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 60.0
"""Of one read or write, not of a whole transfer."""
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Between the tries of a request: the restart of an orchestrator must not fail a step."""


class JobApi:
    def __init__(self, orchestrator_url: str, dispatch: Dispatch, *, pauses_s: Sequence[float] = PAUSES_S) -> None:
        self.base = f"{orchestrator_url}/api/v1/agent/jobs/{dispatch.job_id}"
        self.attempt = dispatch.attempt
        self.pauses_s = pauses_s
        self._token = dispatch.job_token
        self.direct = True
        """Whether signed addresses of the object store are tried: not any more once it could not be reached."""

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """Raises `NoAnswer` in place of what can happen on the way."""
        # 10 MB of memory that an idle agent does not need.
        import httpx

        with answers():
            async with httpx.AsyncClient(
                headers={"authorization": f"Bearer {self._token}"},
                params={"attempt": self.attempt},
                timeout=TIMEOUT_S,
                verify=tls_context(self.base),
                follow_redirects=False,
            ) as client:
                yield client

    async def repeated(
        self,
        method: str,
        path: str,
        what: str,
        *,
        content: bytes | Callable[[], AsyncIterator[bytes]] | None = None,
        params: dict[str, str | Sequence[str]] | None = None,
        headers: dict[str, str] | None = None,
        pauses_s: Sequence[float] | None = None,
        client: httpx.AsyncClient | None = None,
    ) -> httpx.Response:
        """A request that may be made twice: again and again while nobody answers, or only that it cannot be now.

        `pauses_s`: between the tries, if others than usual; `client`: one that is open already.
        Raises `TransferFailed`: `what` is the beginning of its sentence.
        """
        for pause_s in (*(self.pauses_s if pauses_s is None else pauses_s), None):
            try:
                async with self._kept(client) as used:
                    body = content() if callable(content) else content
                    url = f"{self.base}/{path}"
                    response = await used.request(method, url, content=body, params=params, headers=headers)
            except NoAnswer as error:
                if pause_s is None:
                    raise TransferFailed(f"{what}: {error}") from error
            else:
                if response.status_code < 500 or pause_s is None:
                    await check(response, what)
                    return response
            await asyncio.sleep(pause_s)
        raise AssertionError

    @asynccontextmanager
    async def _kept(self, client: httpx.AsyncClient | None) -> AsyncIterator[httpx.AsyncClient]:
        if client is None:
            async with self.client() as opened:
                yield opened
            return
        with answers():
            yield client


@contextmanager
def answers() -> Iterator[None]:
    """Raises `NoAnswer` in place of what can happen on the way to the orchestrator."""
    import httpx

    try:
        yield
    except httpx.HTTPError as error:
        raise NoAnswer(f"the orchestrator did not answer: {error or type(error).__name__}") from error


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
