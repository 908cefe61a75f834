"""Wake-ups between coordinators, and between the parts of one: LISTEN and NOTIFY.

A notification is a hint, never the message: whoever is woken looks at the tables, and polls them anyway from time to
time. NOTIFY serialises commits, so it is never sent inside the transaction that it tells of; what happens within a
few milliseconds goes out as one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import asyncpg
import structlog
from asyncpg import Connection, Pool, Record
from prometheus_client import Counter

from kici.orchestrator.store.database import is_away

log = structlog.get_logger(__name__)

RECONNECTS = Counter("kici_listen_reconnects_total", "How often the listening connection was opened again")

EVENTS = "kici_events"
"""An event was stored. No key."""
QUEUE = "kici_queue"
"""Something can be claimed. Key: `NEW_ROWS`, or none when anything may have changed."""
RUNS = "kici_runs"
"""A run changed. Key: run id."""
LOGS = "kici_logs"
"""Log chunks were stored. Key: job id."""
CANCEL = "kici_cancel"
"""A job of the session is to be cancelled. Key: session id."""
OUTBOX = "kici_outbox"
"""Something is due to be sent. Key: kind."""
SOURCES = "kici_sources"
"""A source was added, changed or removed. Key: routing key."""

NEW_ROWS = "new"
"""Rows were put at the end of their lanes: nothing lies before what was seen already."""

TOKENS = "kici_tokens"
"""An agent token was revoked. Key: token id."""

CHANNELS = (EVENTS, QUEUE, RUNS, LOGS, CANCEL, OUTBOX, SOURCES, TOKENS)

INTERVAL_S = 0.005
"""The least time between two notifications of one channel from one coordinator."""
PAYLOAD_BYTES = 7_900
"""PostgreSQL's limit is 8,000."""

Callback = Callable[[set[str]], None]


class Notifier:
    """Sends. The first notification of a channel goes at once, those that follow within `INTERVAL_S` together."""

    def __init__(self, pool: Pool[Record], *, interval_s: float = INTERVAL_S) -> None:
        self._pool = pool
        self._interval = interval_s
        self._pending: dict[str, set[str]] = {}
        self._sent: dict[str, float] = dict.fromkeys(CHANNELS, float("-inf"))
        self._woken = asyncio.Event()

    def send(self, channel: str, key: str = "") -> None:
        """Tell of a change that has been committed. Returns at once; an empty key says that anything may have changed.

        Lost with the process, and late while the database is away: the listeners look around after both.
        """
        if channel not in self._sent:
            raise ValueError(f"there is no channel {channel!r}")
        self._pending.setdefault(channel, set()).add(key)
        self._woken.set()

    async def run(self) -> None:
        """Send until cancelled; what is pending then is sent first, if the database is there."""
        try:
            while True:
                await self._woken.wait()
                self._woken.clear()
                await self._send_due()
        except asyncio.CancelledError:
            await self._last_words()
            raise

    async def _send_due(self) -> None:
        loop = asyncio.get_running_loop()
        while self._pending:
            now = loop.time()
            wait = min(self._sent[channel] + self._interval - now for channel in self._pending)
            if wait > 0:
                await asyncio.sleep(wait)
                continue
            due = {name: keys for name, keys in self._pending.items() if self._sent[name] + self._interval <= now}
            for channel in due:
                del self._pending[channel]
                self._sent[channel] = now
            try:
                await self._notify(due)
            except BaseException as error:
                for channel, keys in due.items():
                    self._pending.setdefault(channel, set()).update(keys)
                if not is_away(error):
                    raise
                await asyncio.sleep(0.1)

    async def _notify(self, due: dict[str, set[str]]) -> None:
        pairs = [(channel, payload) for channel, keys in due.items() for payload in payloads(keys)]
        channels, texts = zip(*pairs, strict=True)
        await self._pool.fetch(
            "select pg_notify(channel, payload) from unnest($1::text[], $2::text[]) as t (channel, payload)",
            list(channels),
            list(texts),
            timeout=5,
        )

    async def _last_words(self) -> None:
        if not self._pending:
            return
        pending, self._pending = self._pending, {}
        try:
            async with asyncio.timeout(1):
                await self._notify(pending)
        except Exception as error:
            if not is_away(error):
                raise
            log.info("some notifications were not sent: the listeners find out by polling", error=repr(error))


class Listener:
    """Hears, over one connection of its own, which it opens again when it is lost."""

    def __init__(self, url: str, *, check_s: float = 10.0) -> None:
        """`url` leads to the server itself: a pooler in transaction mode does not carry LISTEN.

        A connection that has been silent for `check_s` is asked whether it lives.
        """
        self._url = url
        self._check = check_s
        self._callbacks: defaultdict[str, list[Callback]] = defaultdict(list)
        self._heard: dict[str, set[str]] = {}
        self._woken = asyncio.Event()
        self.connections = 0
        """How often it has connected."""

    def subscribe(self, channel: str, callback: Callback) -> None:
        """Call back with the keys that were heard; with an empty set when anything may have changed.

        That is so after every connect, the first included, and for notifications without a key. The callback only
        wakes somebody: it does not wait, and does not raise.
        """
        if channel not in CHANNELS:
            raise ValueError(f"there is no channel {channel!r}")
        self._callbacks[channel].append(callback)

    async def run(self) -> None:
        """Listen until cancelled."""
        pause = 0.05
        while True:
            before = self.connections
            try:
                await self._listen()
            except Exception as error:
                if not is_away(error):
                    raise
                log.warning("the listening connection was lost", error=repr(error), retry_in_s=pause)
            pause = 0.05 if self.connections > before else min(pause * 2, 2.0)
            await asyncio.sleep(pause)

    async def _listen(self) -> None:
        """One connection, until it is lost."""
        db: Connection[Record] = await asyncpg.connect(self._url, timeout=5, statement_cache_size=0)
        try:
            db.add_termination_listener(lambda _: self._woken.set())
            for channel in CHANNELS:
                async with asyncio.timeout(5):
                    await db.add_listener(channel, self._on_notification)
            self.connections += 1
            if self.connections > 1:
                RECONNECTS.inc()
            self._heard = {channel: {""} for channel in CHANNELS}  # what was missed meanwhile
            self._woken.set()
            while not db.is_closed():
                try:
                    async with asyncio.timeout(self._check):
                        await self._woken.wait()
                except TimeoutError:
                    await db.fetchval("select 1", timeout=5)
                self._woken.clear()
                self._dispatch()
        finally:
            db.terminate()

    def _on_notification(self, _connection: Any, _pid: int, channel: str, payload: object) -> None:
        self._heard.setdefault(channel, set()).update(str(payload).split(","))
        self._woken.set()

    def _dispatch(self) -> None:
        heard, self._heard = self._heard, {}
        for channel, keys in heard.items():
            for callback in self._callbacks[channel]:
                callback(set() if "" in keys else set(keys))


def payloads(keys: set[str]) -> list[str]:
    """The keys as few texts that PostgreSQL takes; an empty one says that anything may have changed."""
    if "" in keys or any("," in key for key in keys):
        return [""]
    texts: list[str] = []
    size = PAYLOAD_BYTES
    for key in sorted(keys):
        length = len(key.encode()) + 1
        if length > PAYLOAD_BYTES:
            return [""]
        if size + length > PAYLOAD_BYTES:
            texts.append(key)
            size = length
        else:
            texts[-1] += f",{key}"
            size += length
    return texts if len(texts) <= 8 else [""]
