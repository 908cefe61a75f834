from __future__ import annotations

from kici.errors import KiciError


class AdminError(KiciError):
    """The command could not do what it was asked. Printed as `error: …`, exit code 1."""

    code = "admin_error"
