"""Jobs that only running code can tell: stand-ins for them, and what they become."""

from __future__ import annotations

from kici.orchestrator.store.migrations.sql import run_file

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    run_file("0004_dynamic_jobs.up.sql")


def downgrade() -> None:
    run_file("0004_dynamic_jobs.down.sql")
