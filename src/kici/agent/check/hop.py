"""A hop: one thing that must work for an agent to work. What it may take, what it needs, and what it found."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Generic, TypeVar

from msgspec import Struct

from kici.errors import KiciError

T = TypeVar("T")
K = TypeVar("K")


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    """The agent works, with less than it could have."""
    FAIL = "fail"
    SKIPPED = "skipped"


class Finding(Struct, frozen=True):
    status: Status
    told: str
    way_out: str = ""
    """What an operator can do about it."""


class Result(Struct, frozen=True):
    hop: str
    finding: Finding
    took_s: float = 0.0


class Hop(Struct, Generic[K], frozen=True):
    name: str
    act: Callable[[K], Awaitable[Finding]]
    """May raise `KiciError` and `OSError`, whose message is what failed."""
    limit_s: float
    needs: tuple[str, ...] = ()
    """Earlier hops that must not have failed."""
    way_out: str = ""
    """For what `act` raises, and for a hop that takes too long."""


def ok(told: str) -> Finding:
    return Finding(Status.OK, told)


def warn(told: str, way_out: str = "") -> Finding:
    return Finding(Status.WARN, told, way_out)


def fail(told: str, way_out: str = "") -> Finding:
    return Finding(Status.FAIL, told, way_out)


async def run(hops: Sequence[Hop[K]], known: K, tell: Callable[[Result], None]) -> list[Result]:
    """One after the other; each is told as soon as it is over. In no more than the sum of their limits."""
    results: list[Result] = []
    broken: dict[str, str] = {}
    """Failed or skipped → where that began."""
    for hop in hops:
        began = time.monotonic()
        cause = next((broken[name] for name in hop.needs if name in broken), "")
        finding = Finding(Status.SKIPPED, f"needs {cause}, which is not ok") if cause else await _found(hop, known)
        if finding.status in (Status.FAIL, Status.SKIPPED):
            broken[hop.name] = cause or hop.name
        results.append(Result(hop.name, finding, time.monotonic() - began))
        tell(results[-1])
    return results


async def in_thread(call: Callable[[], T]) -> T:
    """In a thread that the end of the program does not wait for: what hangs in the system cannot be cancelled."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():  # nobody waits any more
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, problem = None, None
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - it comes out where it is awaited
            problem = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, problem)

    threading.Thread(target=work, daemon=True).start()
    return await future


async def _found(hop: Hop[K], known: K) -> Finding:
    try:
        async with asyncio.timeout(hop.limit_s):
            return await hop.act(known)
    except TimeoutError:
        return fail(f"not done within {hop.limit_s:g} s", hop.way_out)
    except (KiciError, OSError) as error:
        return fail(str(error) or type(error).__name__, hop.way_out)
