from __future__ import annotations

from kici.orchestrator.errors import OrchestratorError


class MasterKeyError(OrchestratorError):
    """The master key is missing or cannot be used. The message says what to set, never what was read."""

    code = "master_key"
    status = 503


class SecretUnreadable(OrchestratorError):
    """A stored secret cannot be decrypted: another master key encrypted it, or somebody has changed the row."""

    code = "secret_unreadable"
    status = 500
