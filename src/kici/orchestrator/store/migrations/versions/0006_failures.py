"""Why steps and jobs did not succeed: kind, signal, last lines, peak memory."""

from __future__ import annotations

from kici.orchestrator.store.migrations.sql import run_file

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    run_file("0006_failures.up.sql")


def downgrade() -> None:
    run_file("0006_failures.down.sql")
