"""Every setting of the orchestrator, read once from `KICI_*` variables.

A variable that nobody knows is told with the nearest known name. Variables of the other programs (`KICI_ADMIN_URL` …)
may stand in the same environment.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from kici.orchestrator.errors import OrchestratorError


class SettingsError(OrchestratorError):
    code = "settings_invalid"


class Settings(Struct, frozen=True, kw_only=True):
    """Field `port` is read from `KICI_PORT`, and so on. Times are seconds unless the name says `_ms`."""

    mode: str = "independent"
    host: str = "127.0.0.1"
    port: int = 4000
    """0 = any free port."""
    listen_fd: int | None = None
    """An inherited listening socket; then `host` and `port` are not used."""
    base_path: str = "/"
    public_url: str = ""
    """Base of the URLs that are printed; empty = the listening address."""
    database_url: str = ""
    """Empty = embedded PostgreSQL below `data_dir`."""
    database_listen_url: str = ""
    """Direct connection for LISTEN when `database_url` goes through a pooler; empty = `database_url`."""
    database_pool_size: int = 10
    auto_migrate: bool = True
    data_dir: Path = Path("/var/lib/kici")
    storage_type: str = "filesystem"
    """`filesystem` or `s3`"""
    storage_fs_path: Path | None = None
    """None = `data_dir/objects`."""
    storage_bucket: str = ""
    storage_region: str = ""
    storage_endpoint: str = ""
    storage_prefix: str = ""
    secret_key_file: Path | None = None
    secret_key: str = ""
    bootstrap_admin_token: str = ""
    bootstrap_admin_token_file: Path | None = None
    bootstrap_agent_token_file: Path | None = None
    """An agent token (`kat_…`) that is upserted at start, without a bound on its labels: for `kici up`."""
    instance_id: str = ""
    """Empty = `<hostname>-<8 hex>`, new at each start."""
    local_repository: str = ""
    """Name of the bare repository that this orchestrator offers; empty = none."""
    log_level: str = "info"
    log_format: str = "auto"

    heartbeat_s: float = 5.0
    silent_s: float = 15.0
    """An agent that is silent for this long shows as recovering."""
    coordinator_lease_s: float = 15.0
    recovery_s: float = 120.0
    report_window_s: float = 900.0
    dispatch_ack_timeout_ms: int = 10_000
    max_attempts: int = 5
    queue_timeout_ms: int = 3_600_000
    """0 = never."""
    poll_s: float = 5.0
    """Safety net beside the notifications."""
    webhook_inflight_bytes: int = 134_217_728
    """Of all webhook bodies being read, in memory or spooled."""
    webhook_spool_bytes: int = 1_048_576
    """A body larger than this is spooled to disk while it is read."""
    lockfile_cache_max: int = 500
    event_attempts: int = 10
    drain_s: float = 10.0
    log_retention_hours: int = 24
    """How long chunk partitions are kept after compaction."""

    def __repr__(self) -> str:
        return f"Settings(mode={self.mode!r}, data_dir={str(self.data_dir)!r})"
