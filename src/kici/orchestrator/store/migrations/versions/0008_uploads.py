"""Upload sessions: what artifacts and cache entries are sent in, part by part; artifacts expire."""

from __future__ import annotations

from kici.orchestrator.store.migrations.sql import run_file

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    run_file("0008_uploads.up.sql")


def downgrade() -> None:
    run_file("0008_uploads.down.sql")
