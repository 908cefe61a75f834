"""Starts a workflow by hand, or a run again, and waits until the new run exists."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from kici.cli.client import Client, ClientError, Refused, segment
from kici.wire import api

PATIENCE_S = 60.0


def start(
    client: Client,
    wanted: api.RunStart | api.RerunBody,
    *,
    path: str = "/runs",
    patience_s: float = PATIENCE_S,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """The run's id. Raises `ClientError` with the reason if no run came of it."""
    key = uuid.uuid4().hex
    began = clock()
    started = client.post(path, wanted, api.RunStarted, idempotency_key=key)
    while started.run_id is None:
        try:
            run_id = _outcome(client, started.delivery_id)
        except Refused as refused:
            if refused.status != 403:
                raise
            # A developer's token may not read deliveries. The same request again starts nothing and tells the run.
            run_id = client.post(path, wanted, api.RunStarted, idempotency_key=key).run_id
        if run_id is not None:
            return run_id
        if clock() - began > patience_s:
            raise ClientError(
                f"the orchestrator took the request (delivery {started.delivery_id}) and has not made the run in"
                f" {patience_s:.0f} s: look into its log"
            )
        pause(0.1)
    return started.run_id


def _outcome(client: Client, delivery_id: str) -> str | None:
    """The run that came of a delivery, None while it is not worked off. Raises `ClientError` if none came."""
    delivery = client.get(f"/event-log/{segment(delivery_id)}", api.DeliveryAnswer).delivery
    made = delivery.run_ids or ([delivery.run_id] if delivery.run_id else [])
    if made:
        return made[0]
    if delivery.status == "received":
        return None
    reasons = [delivery.error_message or "", *delivery.warnings]
    why = "; ".join(reason for reason in reasons if reason) or "no workflow of that name can be started by hand there"
    raise ClientError(f"no run was started ({delivery.status}): {why}")
