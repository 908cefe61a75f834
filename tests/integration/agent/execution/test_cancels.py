"""A job that is cancelled, whatever it does at that moment, ends as cancelled, with the reason, and leaves nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.integration.agent.execution.conftest import SANDBOXES, Jobs

pytestmark = pytest.mark.parametrize("jobs", list(SANDBOXES), indirect=True)

DEAF = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


@pytest.mark.parametrize(
    "body",
    [
        f'steps=["true"], init=[setup({DEAF!r})]',
        f'steps=["true"], cleanup={DEAF!r}',
        f'steps=["exit 1"], on_failure={DEAF!r}',
        f'steps=[step("a", "true", cleanup={DEAF!r})]',
        f'steps=[step("a", {DEAF!r})]',
        'steps=[step("a", "true", rules=[rule("slow", slow)])]',
        'steps=["true"], rules=[rule("slow", slow)]',
        'steps=[step("a", "echo ready; exit 1", retry=Retry(3, delay="1h", max_delay="1h", backoff="fixed"))]',
        'steps=[parallel(step("a", "echo ready; sleep 1000"), step("b", "sleep 1000"))]',
        'steps=["echo ready", step("a", forever)]',
    ],
    ids=["init", "hook", "failure hook", "step hook", "step", "step rule", "job rule", "retry", "parallel", "thread"],
)
async def test_a_cancel_ends_the_job_whatever_it_does(jobs: Jobs, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kici.agent.execution.REPORT_S", 0.5)
    ended = await jobs.run_whole(
        f"""
import time

def slow(ctx):
    print("ready", flush=True)
    time.sleep(1000)

def forever(ctx):
    time.sleep(1000)

ci = workflow("ci", jobs=[job("build", runs_on="linux", grace_period="1s", {body})])
""",
        cancel_at="ready",
    )
    assert (ended.status, ended.reason) == ("cancelled", "cancelled"), ended
    assert ended.error.startswith("nobody wants it")
    assert not any(status == "started" for index, _, status in jobs.sink.steps if index not in jobs.sink.ended)


async def test_a_cancel_during_the_transfer_of_a_cache_ends_the_job(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kici.agent.execution.REPORT_S", 0.5)
    saving = asyncio.Event()

    async def never(key: str, data: AsyncIterator[bytes]) -> None:
        saving.set()
        await asyncio.Event().wait()

    jobs.sink.cache_save = never  # type: ignore[method-assign]
    source = """
        ci = workflow("ci", jobs=[job("build", runs_on="linux", grace_period="1s", steps=[
            step("a", "echo x > kept; echo ready", cache=[cache("k", paths=["kept"])])])])
    """
    ended = await jobs.run_whole(source, cancel_when=saving)
    assert (ended.status, ended.error) == ("cancelled", "nobody wants it")


async def test_the_same_cancel_twice_leaves_the_grace_period_and_force_ends_it(jobs: Jobs) -> None:
    """The orchestrator repeats itself after every reconnect: that is no second wish."""
    source = """
        ci = workflow("ci", jobs=[job("build", runs_on="linux", grace_period="1h", steps=[
            "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done"])])
    """
    ended = await jobs.run_whole(source, cancel_at="ready", force_at="asked")
    assert (ended.status, ended.error) == ("cancelled", "nobody wants it")
    assert jobs.sink.ended[0].status == "cancelled"
    assert jobs.sink.text.count("asked") == 1
