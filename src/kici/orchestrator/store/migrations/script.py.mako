"""${message}"""

from __future__ import annotations

from kici.orchestrator.store.migrations.sql import run_file

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    run_file("${up_revision}_${message}.up.sql")


def downgrade() -> None:
    run_file("${up_revision}_${message}.down.sql")
