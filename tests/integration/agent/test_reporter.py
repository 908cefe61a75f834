"""What a step tells through the agent: masked, and with the end of its step or where the orchestrator keeps it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import nullcontext

import pytest
import zstandard

from kici.agent import caches
from kici.agent.errors import TransferFailed
from kici.agent.job_api import JobApi
from kici.agent.masking import Secrets
from kici.agent.outbox import Outbox
from kici.agent.reporter import Reporter
from kici.engine.lifecycle import StepStatus
from kici.wire.agent import Annotation, AttemptRef, Checkout, Dispatch, LogChunk, StepStatusChanged
from kici.wire.runner import StepEnded
from tests.support.web import Web

VALUE = "tok-9f8e7d6c5b4a"
DISPATCH = Dispatch("r", "j", 1, "ci", "build", "build", Checkout("", "", ""), "", "kjt_1")


class Told:
    """A reporter, and what it has put into the outbox."""

    def __init__(self, web: Web) -> None:
        self.outbox = Outbox()
        self.reporter = Reporter(
            AttemptRef("j", 1), self.outbox, Secrets(), JobApi(web.url, DISPATCH), log_limit_bytes=100_000
        )

    async def bodies(self) -> list[object]:
        waiting = len(self.outbox._statuses) + sum(len(one.waiting) for one in self.outbox._streams.values())
        return [(await self.outbox.next()).body for _ in range(waiting)]


@pytest.fixture
def told(web: Web) -> Told:
    return Told(web)


def ends(bodies: list[object]) -> list[StepStatusChanged]:
    return [body for body in bodies if isinstance(body, StepStatusChanged) and body.status != "running"]


def log(bodies: list[object]) -> str:
    chunks = [body for body in bodies if isinstance(body, LogChunk)]
    return "".join(zstandard.ZstdDecompressor().decompress(chunk.data, 1_000_000).decode() for chunk in chunks)


async def test_annotations_and_summary_go_with_the_end_of_their_step_alone(told: Told) -> None:
    reporter = told.reporter
    for index in (0, 1):
        await reporter.step_started(index, 1)
        reporter.annotated(index, "warning", f"of {index}", "a.py", 3)
        reporter.summarized(index, f"# {index}\n")
        await reporter.step_ended(StepEnded(index, "success"))
    first, second = ends(await told.bodies())
    assert first.annotations == (Annotation("warning", "of 0", "a.py", 3),)
    assert (first.summary, second.summary) == ("# 0\n", "# 1\n")


async def test_of_a_step_that_is_tried_again_those_of_the_last_try_count(told: Told) -> None:
    reporter = told.reporter
    await reporter.step_started(0, 1)
    reporter.annotated(0, "error", "flaky", "", 0)
    await reporter.step_ended(StepEnded(0, "failed", error="no", final=False))
    await reporter.step_started(0, 2)
    reporter.annotated(0, "notice", "fine now", "", 0)
    await reporter.step_ended(StepEnded(0, "success", attempt=2))
    (end,) = ends(await told.bodies())
    assert end.annotations == (Annotation("notice", "fine now"),)


async def test_a_step_that_was_killed_still_tells_them(told: Told) -> None:
    await told.reporter.step_started(0, 1)
    told.reporter.annotated(0, "error", "it hangs", "", 0)
    told.reporter.close(StepStatus.FAILED, "timeout")
    (end,) = ends(await told.bodies())
    assert (end.status, end.annotations) == ("failed", (Annotation("error", "it hangs"),))


async def test_what_is_left_out_stands_in_the_log(told: Told) -> None:
    await told.reporter.step_started(0, 1)
    for _ in range(60):
        told.reporter.annotated(0, "notice", "n", "", 0)
    await told.reporter.step_ended(StepEnded(0, "success"))
    assert log(await told.bodies()).count("[kici] a step has up to 50 annotations: the others are left out") == 1


@pytest.mark.parametrize("taken", [True, False])
async def test_a_secret_output_is_hidden_from_the_call_on_whether_or_not_it_is_taken(
    told: Told, web: Web, taken: bool
) -> None:
    web.authorization = "Bearer kjt_1" if taken else "Bearer other"
    reporter = told.reporter
    await reporter.step_started(0, 1)
    with nullcontext() if taken else pytest.raises(TransferFailed) as refused:
        await reporter.secret_output("TOKEN", VALUE)
    assert VALUE not in repr(refused)
    assert web.artifacts == ({"TOKEN#1": VALUE.encode()} if taken else {})
    await reporter.output(0, f"it is {VALUE}\n".encode())
    reporter.annotated(0, "notice", VALUE, "", 0)
    reporter.summarized(0, VALUE)
    await reporter.step_ended(StepEnded(0, "failed", error=f"bad {VALUE}"))
    bodies = await told.bodies()
    assert VALUE not in repr(bodies) + log(bodies)
    assert "it is ***" in log(bodies)


async def test_secrets_are_hidden_in_what_is_emitted(told: Told, web: Web) -> None:
    told.reporter.mask(VALUE)
    with pytest.raises(TransferFailed, match="event '\\*\\*\\*' was not emitted: no such artifact"):
        await told.reporter.emit(VALUE, {"deep": [VALUE]}, "0:1")
    assert VALUE.encode() not in web.bodies[-1]
    assert b"***" in web.bodies[-1]


async def test_a_cache_that_the_orchestrator_did_not_keep_is_not_told_as_saved(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(api: JobApi, key: str, data: AsyncIterator[bytes]) -> str:
        return "the caches of this repository take all the room they may"

    async def nothing() -> AsyncIterator[bytes]:
        yield b""

    monkeypatch.setattr(caches, "save", refused)
    with pytest.raises(TransferFailed, match="all the room they may"):
        await told.reporter.cache_save("k", nothing())


async def test_the_last_line_of_a_log_says_why_its_step_did_not_succeed(told: Told) -> None:
    told.reporter.mask(VALUE)
    await told.reporter.step_started(0, 1)
    await told.reporter.output(0, b"no newline")
    ended = StepEnded(0, "failed", 1, f"make failed: {VALUE}", reason="exit_code", signal="", last_lines=f"x {VALUE}")
    await told.reporter.step_ended(ended)
    bodies = await told.bodies()
    (end,) = ends(bodies)
    assert (end.error, end.reason, end.last_lines) == ("make failed: ***", "exit_code", "x ***")
    lines = [line.partition(" ")[2] for line in log(bodies).splitlines()]
    assert lines == ["no newline", "[kici] make failed: ***"]


async def test_a_step_that_did_not_begin_has_no_log_because_of_its_reason(told: Told) -> None:
    await told.reporter.step_ended(StepEnded(0, "cancelled", error="cancelled by ann", reason="cancelled"))
    bodies = await told.bodies()
    assert [end.error for end in ends(bodies)] == ["cancelled by ann"]
    assert not log(bodies)
