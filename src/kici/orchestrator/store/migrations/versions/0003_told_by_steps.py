"""What steps tell beside their logs: annotations, summaries, secret outputs; and the caches that jobs keep."""

from __future__ import annotations

from kici.orchestrator.store.migrations.sql import run_file

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    run_file("0003_told_by_steps.up.sql")


def downgrade() -> None:
    run_file("0003_told_by_steps.down.sql")
