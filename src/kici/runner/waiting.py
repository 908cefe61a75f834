"""`ctx.wait_for`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from kici.sdk.errors import WaitTimeout


async def wait_for(fn: Callable[[], Any], every_s: float, limit_s: float) -> Any:
    """What `fn` returns once that is neither None nor False. A blocking one is asked in a thread.

    Raises `WaitTimeout`, and what `fn` raises.
    """
    asked = 0
    try:
        async with asyncio.timeout(limit_s):
            while True:
                asked += 1
                found = await _asked(fn)
                if found is not None and found is not False:
                    return found
                await asyncio.sleep(every_s)
    except TimeoutError as error:
        name = getattr(fn, "__name__", "it")
        raise WaitTimeout(f"{name} was not ready within {limit_s:g} s, asked {asked} times") from error


async def _asked(fn: Callable[[], Any]) -> Any:
    if inspect.iscoroutinefunction(fn):
        return await fn()
    found = await asyncio.get_running_loop().run_in_executor(None, copy_context().run, fn)
    return await found if inspect.isawaitable(found) else found
