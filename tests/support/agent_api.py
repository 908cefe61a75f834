"""What an agent asks the orchestrator with, for a job of a test."""

from __future__ import annotations

from kici.agent.job_api import JobApi
from kici.wire.agent import Checkout, Dispatch
from tests.support import rows
from tests.support.api_server import JOB_TOKEN, Parts


def agent_api(parts: Parts, job: rows.Job, *, attempt: int = 1, token: str = JOB_TOKEN, url: str = "") -> JobApi:
    """`url`: where it finds the orchestrator, if not where it is."""
    checkout = Checkout("/git/x", "a" * 40, "a" * 40)
    dispatch = Dispatch(job.run_id, job.job_id, attempt, "ci", "build", "build", checkout, "", token)
    return JobApi(url or parts.url, dispatch, pauses_s=(0.05, 0.1, 0.2, 0.5, 1.0, 2.0))
