"""The last runs of a workflow on a branch: what changed files are compared with."""

from __future__ import annotations

from kici.orchestrator.store.migrations.sql import run_file

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    run_file("0005_changed_base.up.sql")


def downgrade() -> None:
    run_file("0005_changed_base.down.sql")
