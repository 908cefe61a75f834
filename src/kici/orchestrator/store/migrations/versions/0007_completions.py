"""Who waits for the ends of workflows and jobs, and how many events of a workflow have started runs."""

from __future__ import annotations

from kici.orchestrator.store.migrations.sql import run_file

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    run_file("0007_completions.up.sql")


def downgrade() -> None:
    run_file("0007_completions.down.sql")
