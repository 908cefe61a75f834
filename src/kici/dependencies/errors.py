"""What can be wrong with the packages of workflows."""

from __future__ import annotations

from kici.errors import KiciError


class DependenciesInvalid(KiciError):
    """What `.kici/` declares cannot be used. The message says what to do."""

    code = "dependencies_invalid"
    status = 422


class UvMissing(KiciError):
    code = "uv_missing"
    status = 503

    def __init__(self) -> None:
        super().__init__(
            ".kici/ has a pyproject.toml and a uv.lock, and uv, which installs what they name, is not here:"
            " `pip install uv`, or put it on PATH"
        )


class SyncFailed(KiciError):
    """uv could not make the environment. The message ends with what it said."""

    code = "sync_failed"
    status = 502
