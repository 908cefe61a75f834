"""What an agent is told about a job."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from kici.engine.events import Trust
from kici.orchestrator.dispatch.contract import Login
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.retry import starts_by_itself
from kici.orchestrator.store.jobs import Orders
from kici.orchestrator.store.lanes import Claimed
from kici.wire.agent import Checkout, Dispatch, OrchestratorFrame, orchestrator_frames
from kici.wire.context import JobContext

MAX_DISPATCH_BYTES = 131_072
"""A larger one goes without its context, which the agent then fetches."""


class Place(Struct, frozen=True):
    """Where this orchestrator is seen from outside."""

    public_url: str = ""

    def run_url(self, run_id: str) -> str:
        return f"{self.public_url.rstrip('/')}/api/v1/admin/runs/{run_id}" if self.public_url else ""


def context(orders: Orders, attempt: int, place: Place) -> JobContext:
    return JobContext(
        run_id=orders.run_id,
        job_id=orders.job_id,
        attempt=attempt,
        workflow=orders.workflow_name,
        job=orders.base_job_name,
        name=orders.job_name,
        event=orders.event,
        matrix=orders.matrix,
        needs=orders.needs,
        env=orders.definition.env,
        environment=orders.environment,
        run_url=place.run_url(orders.run_id),
        generated_by=orders.generated_by,
        definition=orders.own_definition,
        fanout_index=orders.fan_out_index,
        fanout_total=orders.fan_out_total,
    )


def dispatch(orders: Orders, claimed: Claimed, job_token: str, login: Login, *, limits: Limits, place: Place) -> bytes:
    """The frame that is sent."""
    alone = starts_by_itself(policy=orders.retry_on_infra, used=claimed.used, limits=limits)
    message = Dispatch(
        run_id=orders.run_id,
        job_id=orders.job_id,
        attempt=claimed.attempt,
        workflow=orders.workflow_name,
        job=orders.base_job_name,
        name=orders.job_name,
        checkout=Checkout(
            url=orders.clone_url,
            sha=orders.sha,
            workflow_sha=orders.workflow_sha,
            ref=orders.ref,
            username=login.username,
            password=login.password,
            trusted=orders.event.trust is Trust.TRUSTED,
        ),
        lock_sha256=orders.lock_sha256,
        job_token=job_token,
        # Secrets go with the answer to a request of the attempt itself, never through a frame that waits somewhere.
        context=None if orders.has_secrets else context(orders, claimed.attempt, place),
        kill_after_silence_s=limits.recovery_s if alone else None,
        timeout_ms=orders.definition.timeout_ms or limits.job_timeout_ms,
    )
    frame = orchestrator_frames.encode(OrchestratorFrame(message))
    if len(frame) > MAX_DISPATCH_BYTES:
        return orchestrator_frames.encode(OrchestratorFrame(replace(message, context=None)))
    return frame
