"""Concurrency groups, windows of fan-outs, deadlines of runs and jobs, reruns; pauses and caps of the queue."""

from __future__ import annotations

from kici.orchestrator.store.migrations.sql import run_file

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    run_file("0002_lifecycle_and_queue.up.sql")


def downgrade() -> None:
    run_file("0002_lifecycle_and_queue.down.sql")
