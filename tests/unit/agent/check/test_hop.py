"""The order of hops, their limits, and what depends on what."""

from __future__ import annotations

import asyncio
import threading

from kici.agent.check.hop import Finding, Hop, Result, Status, fail, in_thread, ok, run, warn
from kici.errors import KiciError


async def good(_: None) -> Finding:
    return ok("fine")


async def meagre(_: None) -> Finding:
    return warn("less")


async def broken(_: None) -> Finding:
    return fail("broken", "mend it")


async def raising(_: None) -> Finding:
    raise KiciError("it is not there")


async def hanging(_: None) -> Finding:
    await asyncio.Event().wait()
    raise AssertionError


async def all_of(*hops: Hop[None]) -> dict[str, Result]:
    told: list[Result] = []
    results = await run(hops, None, told.append)
    assert told == results
    return {result.hop: result for result in results}


async def test_what_needs_a_failed_hop_is_skipped_with_its_name_and_the_rest_goes_on() -> None:
    found = await all_of(
        Hop("a", broken, 1), Hop("b", good, 1, ("a",)), Hop("c", good, 1, ("b",)), Hop("d", good, 1),
        Hop("e", meagre, 1), Hop("f", good, 1, ("d", "e")),
    )  # fmt: skip
    assert {name: result.finding.status for name, result in found.items()} == {
        "a": Status.FAIL, "b": Status.SKIPPED, "c": Status.SKIPPED, "d": Status.OK, "e": Status.WARN, "f": Status.OK,
    }  # fmt: skip
    assert found["c"].finding.told == "needs a, which is not ok"


async def test_what_a_hop_raises_is_its_failure_with_the_way_out() -> None:
    found = await all_of(Hop("a", raising, 1, (), "look there"))
    assert found["a"].finding == fail("it is not there", "look there")


async def test_a_hop_that_hangs_ends_at_its_limit() -> None:
    found = await all_of(Hop("a", hanging, 0.01), Hop("b", good, 1))
    assert found["a"].finding == fail("not done within 0.01 s")
    assert found["b"].finding.status is Status.OK


async def test_a_call_that_hangs_in_the_system_keeps_nobody() -> None:
    never = threading.Event()

    async def stuck(_: None) -> Finding:
        await in_thread(never.wait)
        raise AssertionError

    try:
        found = await all_of(Hop("a", stuck, 0.01))
    finally:
        never.set()
    assert found["a"].finding.status is Status.FAIL
