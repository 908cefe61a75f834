"""What keeps an embedded server from running."""

from __future__ import annotations

from kici.orchestrator.errors import OrchestratorError


class EmbeddedPostgresError(OrchestratorError):
    code = "embedded_postgres"
