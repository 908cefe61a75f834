"""Whose request it is: what every route for agents asks first."""

from __future__ import annotations

from typing import Any

from litestar import Request

from kici.orchestrator.api import parameters
from kici.orchestrator.errors import AttemptOver, Forbidden
from kici.orchestrator.identity.access import Access, JobPrincipal, bearer


async def attempt_of(access: Access, request: Request[Any, Any, Any], job_id: str, attempt: int) -> JobPrincipal:
    """The attempt whose token the request carries, if it is this one.

    Raises `Unauthorized`, `Forbidden` (another job's token) or `AttemptOver`. It may be over a moment later: what
    writes is fenced again in its own transaction.
    """
    job = await access.job(bearer(request))
    if job.job_id != parameters.uuid_of(job_id, "job"):
        raise Forbidden("this token belongs to another job")
    if job.attempt != attempt:
        raise AttemptOver(f"attempt {attempt} is over: the job is at attempt {job.attempt}")
    return job
