"""Events, runs, jobs, steps, queue, sessions, leases, logs, artifacts, tokens, secrets, sources."""

from __future__ import annotations

from kici.orchestrator.store.migrations.sql import run_file

revision = "0001"
down_revision = None


def upgrade() -> None:
    run_file("0001_foundation.up.sql")


def downgrade() -> None:
    run_file("0001_foundation.down.sql")
