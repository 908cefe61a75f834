"""Carries the parts of one artifact or cache entry: straight to or from the object store where the orchestrator signs
an address of it, else through the orchestrator.

A signed address is a secret: it stands in no log and in no error. The job's token goes to the orchestrator only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from kici.agent.errors import Damaged, NoAnswer, TransferFailed
from kici.agent.job_api import TIMEOUT_S, JobApi, answers, check
from kici.authorities import tls_context
from kici.wire.agent_api import PartRange, PartUrls

if TYPE_CHECKING:
    import httpx

PIECE_BYTES: Final = 262_144
URLS_AT_ONCE: Final = 16
CONNECT_S: Final = 5.0
"""To the object store: where it does not answer, the orchestrator is the way."""
STORE_PAUSES_S: Final = (0.5, 2.0)
_MAX_ANSWER: Final = 65_536
"""Bytes of what a store answers to a PUT that are read."""


Carry = Callable[[str], Awaitable[tuple[list[bytes] | None, int]]]
"""Carries one part to or from an address: what came, nothing for a part that was sent, or None with the status."""


class PartCarrier:
    """`what` is the beginning of the sentence of every error; `path` the place of the transfer below the job's."""

    def __init__(
        self, api: JobApi, what: str, path: str, urls: Sequence[str | None], *, params: dict[str, str] | None = None
    ) -> None:
        self._api = api
        self._what = what
        self._path = path
        self._params: dict[str, str | Sequence[str]] = {**(params or {})}
        self._urls: dict[int, str | None] = dict(enumerate(urls))
        self._asking = asyncio.Lock()
        self._ends = AsyncExitStack()

    async def __aenter__(self) -> PartCarrier:
        import logging

        import httpcore  # late, like the client of `JobApi`
        import httpx

        # It writes every address that it asks for, with the signature.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        # As much as the loop reads at once: by itself it takes a quarter of that, and copies the rest each time.
        httpcore.AsyncHTTP11Connection.READ_NUM_BYTES = PIECE_BYTES
        self._client = await self._ends.enter_async_context(self._api.client())
        self._store = await self._ends.enter_async_context(
            httpx.AsyncClient(
                timeout=httpx.Timeout(TIMEOUT_S, connect=CONNECT_S),
                follow_redirects=False,
                verify=tls_context("https:"),
            )
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._ends.aclose()

    async def send(self, number: int, data: Sequence[bytes | bytearray]) -> None:
        """Its bytes in pieces: the time-out is that of one. Raises `TransferFailed`."""
        if await self._straight(number, partial(self._send_straight, data=data)) is not None:
            return
        await self._api.repeated(
            "PUT",
            f"{self._path}/parts/{number}",
            self._what,
            content=partial(_pieces, data),
            params=self._params,
            headers={"content-length": str(_size(data))},
            client=self._client,
        )

    async def fetch(self, number: int, length: int) -> list[bytes]:
        """Exactly so many bytes, in pieces. Raises `Damaged` if there are others, or none; `TransferFailed`."""
        data = await self._straight(number, partial(self._fetch_straight, length=length))
        if data is not None:
            return data
        for pause_s in (*self._api.pauses_s, None):
            try:
                with answers():
                    url = f"{self._api.base}/{self._path}/parts/{number}"
                    async with self._client.stream("GET", url, params=self._params) as response:
                        if response.status_code == 404:
                            raise Damaged(f"{self._what}: a part of it is not there")
                        if response.status_code < 500 or pause_s is None:
                            await check(response, self._what)
                            return await self._whole(response, length)
            except NoAnswer as error:
                if pause_s is None:
                    raise TransferFailed(f"{self._what}: {error}") from error
            await asyncio.sleep(pause_s or 0)
        raise AssertionError

    # ── straight to the object store ─────────────────────────────────────────────────────────────────────────────────

    async def _straight(self, number: int, carry: Carry) -> list[bytes] | None:
        """None: it has to go through the orchestrator."""
        import httpx

        url = await self._url(number)
        renewed = False
        pauses_s = [*STORE_PAUSES_S, None]
        while url is not None and self._api.direct:
            if not self._may_go_to(url):
                self._give_up(url, "it is not reached by https")
                return None
            try:
                done, status = await carry(url)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
                self._give_up(url, type(error).__name__)
                return None
            except Damaged:  # the orchestrator sees whether the store itself has it so
                self._give_up(url, "what came has another length")
                return None
            except httpx.HTTPError as error:
                status, why = 0, type(error).__name__
            else:
                if done is not None:
                    return done
                why = f"status {status}"
            if status == 403 and not renewed:  # its time is over
                renewed = True
                self._urls.clear()
                url = await self._url(number)
                continue
            pause_s = pauses_s.pop(0) if status == 0 or status >= 500 or status in (408, 429) else None
            if pause_s is None:
                self._give_up(url, why)
                return None
            await asyncio.sleep(pause_s)
        return None

    async def _send_straight(self, url: str, *, data: Sequence[bytes | bytearray]) -> tuple[list[bytes] | None, int]:
        headers = {"content-length": str(_size(data))}
        async with self._store.stream("PUT", url, content=_pieces(data), headers=headers) as response:
            read = 0
            async for piece in response.aiter_raw():
                read += len(piece)
                if read > _MAX_ANSWER:
                    break
            return ([] if response.is_success else None), response.status_code

    async def _fetch_straight(self, url: str, *, length: int) -> tuple[list[bytes] | None, int]:
        async with self._store.stream("GET", url, headers={"accept-encoding": "identity"}) as response:
            if not response.is_success:
                return None, response.status_code
            return await self._whole(response, length), 200

    async def _url(self, number: int) -> str | None:
        if not self._api.direct:
            return None
        async with self._asking:
            if number not in self._urls:
                if self._urls.get(number - 1, "") is None:  # the orchestrator signs none
                    self._urls[number] = None
                    return None
                wanted = msgspec.json.encode(PartRange(number, URLS_AT_ONCE))
                response = await self._api.repeated(
                    "POST",
                    f"{self._path}/urls",
                    self._what,
                    content=wanted,
                    params=self._params,
                    headers={"content-type": "application/json"},
                    client=self._client,
                )
                urls = msgspec.json.decode(response.content, type=PartUrls).urls
                self._urls |= dict(enumerate(urls, number))
            return self._urls.get(number)

    def _may_go_to(self, url: str) -> bool:
        """Nobody is to lead what was to go encrypted over a wire that is open."""
        return url.startswith("https://") or (url.startswith("http://") and self._api.base.startswith("http://"))

    def _give_up(self, url: str, why: str) -> None:
        if not self._api.direct:
            return
        import structlog

        self._api.direct = False
        structlog.get_logger(__name__).warning(
            "the object store cannot be used from here: the parts go through the orchestrator",
            store=urlsplit(url).hostname,
            why=why,
        )

    async def _whole(self, response: httpx.Response, length: int) -> list[bytes]:
        data, missing = [], length
        async for piece in response.aiter_raw():
            data.append(piece)
            missing -= len(piece)
            if missing < 0:
                break
        if missing:
            raise Damaged(f"{self._what}: a part of it has not the {length:,} bytes that were saved")
        return data


async def _pieces(data: Sequence[bytes | bytearray]) -> AsyncIterator[bytes]:
    for piece in data:
        yield bytes(piece)


def _size(data: Sequence[bytes | bytearray]) -> int:
    return sum(map(len, data))
