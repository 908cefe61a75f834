"""Every setting of the orchestrator, read once from `KICI_*` variables.

A variable that nobody knows is told with the nearest known name. Variables of the other programs (`KICI_ADMIN_URL` …)
may stand in the same environment.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from kici import settings_names
from kici.orchestrator.errors import OrchestratorError

PREFIX: Final = "KICI_"


class SettingsError(OrchestratorError):
    code = "settings_invalid"


LOG_LEVELS: Final = ("debug", "info", "warn", "warning", "error")
LOG_FORMATS: Final = ("auto", "plain", "json")
MIN_POOL: Final = 4
"""Connections: intake keeps one, each writer wants one, and the rest share what is left."""
POSITIVE: Final = (
    "database_pool_size",
    "database_log_pool_size",
    "heartbeat_s",
    "silent_s",
    "coordinator_lease_s",
    "recovery_s",
    "report_window_s",
    "dispatch_ack_timeout_ms",
    "max_attempts",
    "poll_s",
    "webhook_inflight_bytes",
    "webhook_spool_bytes",
    "event_attempts",
    "event_router_rate_limit_per_workflow_per_minute",
    "user_cache_quota_bytes",
    "user_cache_ttl_ms",
    "artifact_max_bytes",
    "artifacts_per_run",
    "artifact_quota_bytes",
)


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
    database_log_pool_size: int = 4
    """Beside `database_pool_size`: for compacting, dropping and reading logs. One more writes them."""
    auto_migrate: bool = True
    data_dir: Path = Path("/var/lib/kici")
    storage_type: str = "filesystem"
    """`filesystem` or `s3`"""
    storage_fs_path: Path | None = None
    """None = `data_dir/objects`."""
    storage_bucket: str = ""
    storage_region: str = ""
    storage_endpoint: str = ""
    storage_external_endpoint: str = ""
    """Of the same bucket, as agents reach it; empty = `storage_endpoint`."""
    storage_prefix: str = ""
    storage_direct: bool = True
    """Agents send to and read from a bucket themselves, by signed addresses."""
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
    job_timeout_ms: int = 21_600_000
    """Of a job that has no timeout of its own; 0 = none."""
    queue_repository_max_running: int = 0
    """How many jobs a repository without a cap of its own may run at once; 0 = any number."""
    queue_unservable: str = "wait"
    """What becomes of a job that wants a label which nothing here could offer: `wait`, or `fail` at once."""
    poll_s: float = 5.0
    """Safety net beside the notifications."""
    webhook_inflight_bytes: int = 134_217_728
    """Of all webhook bodies being read, in memory or spooled."""
    webhook_spool_bytes: int = 1_048_576
    """A body larger than this is spooled to disk while it is read."""
    lockfile_cache_max: int = 500
    event_attempts: int = 10
    event_router_rate_limit_per_workflow_per_minute: int = 100
    """How many events of one workflow may start runs in one minute of the clock."""
    drain_s: float = 10.0
    die_with_parent: bool = False
    """Stop when the process that started this one has died: for `kici up`."""
    user_cache_quota_bytes: int = 5_368_709_120
    """Of all cache entries of a repository, and of one entry."""
    user_cache_ttl_ms: int = 604_800_000
    """A cache entry that no job has found for so long goes."""
    artifact_max_bytes: int = 5_368_709_120
    """Of one artifact."""
    artifacts_per_run: int = 500
    artifact_quota_bytes: int = 107_374_182_400
    """Of all artifacts of a repository; what pull requests may take of it is a share."""
    artifact_ttl_ms: int = 7_776_000_000
    """Since an artifact was made; 0 = it stays for ever."""
    log_retention_hours: int = 24
    """How long chunk partitions are kept after compaction."""

    def __repr__(self) -> str:
        return f"Settings(mode={self.mode!r}, data_dir={str(self.data_dir)!r})"


def load(environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """The settings, and what the operator should be told about the variables.

    Raises `SettingsError`, which names all variables that are wrong.
    """
    fields = typing.get_type_hints(Settings)
    given = {_variable(name): environ[_variable(name)] for name in fields if _variable(name) in environ}
    for alias, variable in settings_names.ALIASES.items():
        if alias in environ:
            given.setdefault(variable, environ[alias])
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for name, kind in fields.items():
        text = given.get(_variable(name))
        if text is None or (not text.strip() and kind is not str):
            continue
        try:
            values[name] = _READERS[kind](text.strip())
        except ValueError as error:
            wrong.append(f"{_variable(name)}: {error}")
    if not wrong:
        settings = Settings(**values)
        wrong = list(_contradictions(settings))
        if not wrong:
            return settings, _strangers(environ, fields)
    raise SettingsError("; ".join(wrong))


def _contradictions(settings: Settings) -> typing.Iterator[str]:
    if settings.mode != "independent":
        yield (
            f"KICI_MODE: {settings.mode!r} needs the hosted relay, which kici does not have: the only mode is"
            " `independent`"
        )
    if settings.storage_type not in {"filesystem", "s3"}:
        yield f"KICI_STORAGE_TYPE: {settings.storage_type!r} is neither `filesystem` nor `s3`"
    if settings.storage_type == "s3" and not settings.storage_bucket:
        yield "KICI_STORAGE_BUCKET is required when KICI_STORAGE_TYPE is s3"
    if 0 < settings.artifact_quota_bytes < settings.artifact_max_bytes:
        yield (
            f"KICI_ARTIFACT_MAX_BYTES: one artifact could be larger ({settings.artifact_max_bytes:,} bytes) than what"
            f" all may take ({settings.artifact_quota_bytes:,}): lower it, or raise KICI_ARTIFACT_QUOTA_BYTES"
        )
    if settings.storage_fs_path is not None and not settings.storage_fs_path.is_absolute():
        yield "KICI_STORAGE_FS_PATH must be an absolute path"
    if not settings.base_path.startswith("/"):
        yield "KICI_BASE_PATH must begin with /"
    for name in ("database_url", "database_listen_url"):
        url: str = getattr(settings, name)
        if url and urlsplit(url).scheme not in {"postgres", "postgresql"}:
            yield f"{_variable(name)} must be a URL that begins with postgresql://"  # its text may hold a password
    if settings.log_level not in LOG_LEVELS:
        yield f"KICI_LOG_LEVEL: {settings.log_level!r} is none of {', '.join(LOG_LEVELS)}"
    if settings.log_format not in LOG_FORMATS:
        yield f"KICI_LOG_FORMAT: {settings.log_format!r} is none of {', '.join(LOG_FORMATS)}"
    if settings.queue_unservable not in {"wait", "fail"}:
        yield f"KICI_QUEUE_UNSERVABLE: {settings.queue_unservable!r} is neither `wait` nor `fail`"
    if settings.port > 65_535:
        yield "KICI_PORT: a port is a number up to 65535"
    for name in POSITIVE:
        if getattr(settings, name) <= 0:
            yield f"{_variable(name)} must be more than 0"
    if settings.heartbeat_s > 0 and settings.silent_s < 2 * settings.heartbeat_s:
        yield "KICI_SILENT_S must be at least twice KICI_HEARTBEAT_S, or every late heartbeat looks like a lost agent"
    if settings.recovery_s <= 2 * settings.silent_s:
        yield "KICI_RECOVERY_S must be more than twice KICI_SILENT_S: an agent dials anew in between"
    if settings.database_pool_size < MIN_POOL:
        yield f"KICI_DATABASE_POOL_SIZE must be at least {MIN_POOL}: intake keeps one connection for itself"


def _strangers(environ: Mapping[str, str], fields: Mapping[str, Any]) -> list[str]:
    """A sentence about each variable of our prefix that is not read."""
    ours = {_variable(name) for name in fields} | set(settings_names.ALIASES)
    told = []
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in ours or settings_names.of_another_program(variable):
            continue
        if settings_names.of_a_later_version(variable):
            told.append(f"{variable} has no effect: this version does not have what it sets")
            continue
        nearest = settings_names.nearest(variable, ours)
        told.append(f"{variable} is unknown" + (f": is {nearest} meant?" if nearest else ", and has no effect"))
    return told


def _variable(field: str) -> str:
    return PREFIX + field.upper()


def _whole_number(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None
    if number < 0:
        raise ValueError(f"{text!r} is negative")
    return number


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{text!r} is not a number of seconds")
    return number


def _yes_or_no(text: str) -> bool:
    lower = text.lower()
    if lower in {"true", "1"}:
        return True
    if lower in {"false", "0"}:
        return False
    raise ValueError(f"{text!r} is neither `true` nor `false`")


_READERS: Final[dict[Any, Callable[[str], Any]]] = {
    str: str,
    int: _whole_number,
    int | None: _whole_number,
    float: _number,
    bool: _yes_or_no,
    Path: Path,
    Path | None: Path,
}
