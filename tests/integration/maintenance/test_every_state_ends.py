"""No state of a job is one in which it can stay for ever: each is named here with what ends it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kici.engine.lifecycle import TERMINAL_JOB, JobStatus
from kici.orchestrator.lifecycle.cancel import cancel_run
from kici.orchestrator.maintenance import sweeper
from kici.orchestrator.maintenance.end_stale_waits import EndStaleWaits
from kici.orchestrator.maintenance.requeue_unacknowledged import RequeueUnacknowledged
from kici.orchestrator.maintenance.settle_overdue import SettleOverdue
from kici.orchestrator.maintenance.stop_overdue_jobs import StopOverdueJobs
from kici.orchestrator.store.lease import Lease
from tests.integration.maintenance.conftest import dispatched
from tests.support.coordinator import Coordinator
from tests.support.fake_agent import agents
from tests.support.locks import job
from tests.support.runs import Made, make_run

ENDED_BY = {
    JobStatus.PENDING: (),  # with the last of the jobs that it needs, in that one's transaction
    JobStatus.HELD: (),  # stored as pending, beside a hold that expires
    JobStatus.WAITING: (),  # the same, beside a timer
    JobStatus.QUEUED: (RequeueUnacknowledged, EndStaleWaits),
    JobStatus.RUNNING: (StopOverdueJobs, SettleOverdue),
    JobStatus.RECOVERING: (SettleOverdue,),
    JobStatus.CANCELLING: (SettleOverdue,),
}
STORED = [state for state, sweepers in ENDED_BY.items() if sweepers]


def test_each_open_state_is_in_the_table() -> None:
    assert ENDED_BY.keys() == set(JobStatus) - TERMINAL_JOB


async def an_hour_passes(here: Coordinator) -> None:
    for table, columns in {
        "execution_jobs": ("deadline", "cancel_deadline", "recovery_deadline", "report_deadline"),
        "execution_runs": ("deadline",),
        "dispatch_queue": ("ack_deadline", "expires_at", "not_before"),
    }.items():
        moved = ", ".join(f"{column} = {column} - interval '7 hours'" for column in columns)
        await here.pool.execute(f"update {table} set {moved}")


async def in_state(here: Coordinator, state: JobStatus, *, sent: bool) -> Made:
    """A job whose agent is there, and never says a word again."""
    agent = await here.agent()
    async with agents(agent):
        if state is not JobStatus.QUEUED or sent:
            await agent.connect()
        made = await make_run(here.pool, [job("build"), job("deploy", needs=["build"])])
        if state is JobStatus.QUEUED:
            if sent:
                await dispatched(here, agent)
            return made
        build = await dispatched(here, agent)
        await agent.begin(build)
        await agent.step(build, "running")
        if state is JobStatus.RECOVERING:
            await agent.drop()
            here.roster.all()[0].heard_at -= 10_000
            here.roster.all()[0].link = None
            await here.silence.run_once()
        if state is JobStatus.CANCELLING:
            async with here.pool.acquire() as db, db.transaction():
                await cancel_run(db, made.run_id, by="me", reason="enough", force=False)
        assert (await made.job("build"))["status"] == state
        return made


@pytest.mark.parametrize(("state", "sent"), [*((state, False) for state in STORED), (JobStatus.QUEUED, True)])
async def test_what_is_named_ends_it_whatever_its_agent_does(
    here: Coordinator, held: Lease, state: JobStatus, *, sent: bool
) -> None:
    made = await in_state(here, state, sent=sent)
    parts = (here.pool, held, here.notifier, here.limits, sweeper.Settings(lease=timedelta(0)))
    for _ in range(4):
        await an_hour_passes(here)
        for ending in ENDED_BY[state]:
            await ending(*parts, instance=here.instance).run_once()
    ended = await made.job("build")
    assert ended["status"] in TERMINAL_JOB
    assert ended["error_message"]
    assert (await made.job("deploy"))["status"] in TERMINAL_JOB
    assert (await made.run())["completed_at"] is not None
