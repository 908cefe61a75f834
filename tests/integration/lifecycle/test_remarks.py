"""Annotations and summaries: stored with the end of their step, within the limits, whatever an agent sends."""

from __future__ import annotations

from typing import Any

from kici.engine.lifecycle import JobStatus
from kici.orchestrator.store.runs import Reused
from kici.orchestrator.store.views import runs as runs_view
from kici.wire import api
from kici.wire.agent import MAX_ANNOTATION_CHARS, MAX_ANNOTATIONS, MAX_SUMMARY_BYTES, Annotation
from tests.integration.lifecycle.conftest import Rig
from tests.support.locks import job
from tests.support.runs import Made

TOLD = (Annotation("warning", "unused import", "src/app.py", 7), Annotation("notice", "slow"))


async def first_step(made: Made) -> api.Step:
    async with made.pool.acquire() as db:
        jobs = await runs_view.jobs(db, made.run_id, steps=True)
    assert jobs[0].steps
    return jobs[0].steps[0]


async def test_they_are_there_with_the_steps_end_and_stay_however_often_it_is_told(rig: Rig) -> None:
    made = await rig.make(job("lint"))
    await rig.begin(made)
    assert await rig.step(made["lint"], "running", annotations=TOLD, summary="too early") == ""
    assert (await first_step(made)).annotations == []
    for _ in range(2):
        assert await rig.step(made["lint"], "success", annotations=TOLD, summary="# Lint\n") == ""
    step = await first_step(made)
    assert step.annotations == [
        api.Annotation("warning", "unused import", "src/app.py", 7),
        api.Annotation("notice", "slow"),
    ]
    assert step.summary == "# Lint\n"


async def test_what_no_honest_agent_sends_is_cut(rig: Rig) -> None:
    made = await rig.make(job("lint"))
    await rig.begin(made)
    wild: tuple[Any, ...] = tuple(Annotation("doom", "m\x00" * 5_000, "f" * 9_000, 10**15) for _ in range(100))
    assert await rig.step(made["lint"], "success", annotations=wild, summary="é\x00" * 100_000) == ""
    step = await first_step(made)
    assert len(step.annotations) == MAX_ANNOTATIONS
    one = step.annotations[0]
    assert (one.level, one.line, len(one.file)) == ("notice", 2_147_483_647, 500)
    assert len(one.message) == MAX_ANNOTATION_CHARS
    assert "\x00" not in one.message
    assert step.summary
    assert "\x00" not in step.summary
    assert len(step.summary) <= MAX_SUMMARY_BYTES


async def test_a_reused_job_keeps_them(rig: Rig) -> None:
    made = await rig.make(job("lint"))
    await rig.begin(made)
    await rig.step(made["lint"], "success", annotations=TOLD, summary="# Lint")
    await rig.end(made["lint"])
    again = await rig.make(job("lint"), reused={"lint": Reused(made["lint"], JobStatus.SUCCESS)})
    assert await first_step(again) == await first_step(made)
