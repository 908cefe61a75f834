"""How much the artifacts of a repository take, and how much what is being sent of them may become."""

from __future__ import annotations

from kici.orchestrator.store.migrations.sql import run_file

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    run_file("0009_artifact_quota.up.sql")


def downgrade() -> None:
    run_file("0009_artifact_quota.down.sql")
