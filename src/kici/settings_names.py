"""Names of `KICI_*` variables: whose they are, other spellings, and slips of the pen. For all programs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

AGENT: Final = (
    "KICI_ORCHESTRATOR_URL",
    "KICI_AGENT_ID",
    "KICI_AGENT_TOKEN",
    "KICI_AGENT_TOKEN_FILE",
    "KICI_LABELS",
    "KICI_SANDBOX",
    "KICI_SANDBOX_PROFILE",
    "KICI_SANDBOX_ALLOW",
    "KICI_SANDBOX_NETWORK",
    "KICI_SANDBOX_IMAGE",
    "KICI_SANDBOX_PULL",
    "KICI_AGENT_SLOTS",
    "KICI_STANDBY",
    "KICI_JOB_MEMORY",
    "KICI_JOB_CPUS",
    "KICI_JOB_PIDS",
    "KICI_JOB_DISK",
    "KICI_WORK_DIR",
    "KICI_CA_BUNDLE",
    "KICI_MAX_LOG_SIZE_BYTES",
    "KICI_MIN_FREE_BYTES",
    "KICI_MIN_FREE_INODES",
    "KICI_HOOKS_DIR",
    "KICI_HOOK_TIMEOUT_S",
    "KICI_DEPENDENCY_BUILDS",
    "KICI_DEPENDENCY_CACHE_BYTES",
    "KICI_MIRRORS",
    "KICI_MIRRORS_BYTES",
    "KICI_DRAIN_S",
    "KICI_DIE_WITH_PARENT",
    "KICI_AGENT_HTTP",
    "KICI_LOG_LEVEL",
    "KICI_LOG_FORMAT",
)
"""What an agent reads."""

ALIASES: Final = {
    "KICI_SERVER_PORT": "KICI_PORT",
    "KICI_SERVER_BASE_PATH": "KICI_BASE_PATH",
    "KICI_SERVER_LOG_LEVEL": "KICI_LOG_LEVEL",
    "KICI_INSTANCE_MODE": "KICI_MODE",
    "KICI_CLUSTER_INSTANCE_ID": "KICI_INSTANCE_ID",
    "KICI_WEBHOOK_PUBLIC_URL": "KICI_PUBLIC_URL",
}
"""Of the orchestrator: the long spelling of configuration files; the short one wins."""

_OTHERS: Final = frozenset(
    {
        *AGENT,
        "KICI_BACKPRESSURE_MODE",
        "KICI_CACHE",
        "KICI_CLUSTER_ROLE",
        "KICI_CONFIG_DIR",
        "KICI_CONFIG_ROOT",
        "KICI_DEFAULT_STEP_TIMEOUT_MS",
        "KICI_DEV",
        "KICI_DOCKER_KEEP_FAILED",
        "KICI_EXECUTION_MODE",
        "KICI_GITHUB_TOKEN",
        "KICI_PROPERTIES",
        "KICI_ROLES",
        "KICI_TOKEN",
        "KICI_URL",
    }
)
_OTHERS_BEGIN: Final = ("KICI_ADMIN_", "KICI_AGENT_", "KICI_BACKEND_", "KICI_E2E_", "KICI_SCALER_MANAGED", "KICI_TEST_")
_OTHERS_END: Final = ("_ENV_PROBE",)

_LATER: Final = frozenset(
    {
        "KICI_AGENT_AUTH",
        "KICI_AGENT_MAX_RECONNECT_DELAY_MS",
        "KICI_AGENT_TOKEN_TTL_MS",
        "KICI_CONCURRENCY_WAIT_TIMEOUT_MS",
        "KICI_CONFIG",
        "KICI_DASHBOARD_URL",
        "KICI_EVENT_LOG_MAX_PAYLOAD_BYTES",
        "KICI_HOST_REBOOT_DEADLINE_MS",
        "KICI_JOB_HEARTBEAT_INTERVAL_MS",
        "KICI_LOCKFILE_CACHE_TTL_MS",
        "KICI_MACHINE_LEDGER_DIR",
        "KICI_MAX_FANOUT_HOSTS",
        "KICI_ORCHESTRATOR_HOST_AGENT_ID",
        "KICI_PG_CUSTOMER_SECRETS",
        "KICI_PLATFORM_TOKEN",
        "KICI_PLATFORM_URL",
        "KICI_PROVENANCE_ISSUER",
        "KICI_SECRET_KEY_FILE_OLD",
        "KICI_SECRET_KEY_OLD",
        "KICI_SERVER_TLS_CERT_PATH",
        "KICI_SKIP_S3_SENTINEL_VALIDATION",
        "KICI_STORAGE_EXTERNAL_ENDPOINT",
        "KICI_STORAGE_FORCE_PATH_STYLE",
        "KICI_STORAGE_FS_BASE_URL",
        "KICI_STORAGE_LOG_BUCKET",
        "KICI_STORAGE_PATH",
        "KICI_STORAGE_UPLOAD_ENDPOINT",
        "KICI_WEBHOOK_PAYLOAD_DIR",
        "KICI_WORKER_CONCURRENCY",
    }
)
_LATER_BEGIN: Final = (
    "KICI_CACHE_",
    "KICI_CLUSTER_",
    "KICI_COLD_STORE_",
    "KICI_DEPLOY_",
    "KICI_EVENT_ROUTER_",
    "KICI_GITHUB_APP_",
    "KICI_LOG_DIR",
    "KICI_LOG_MAX_SIZE",
    "KICI_LOG_RETENTION_DAYS",
    "KICI_PROVIDERS_",
    "KICI_QUEUE_BACKPRESSURE_",
    "KICI_QUEUE_MAX_DEPTH",
    "KICI_ROSTER_",
    "KICI_SCALER_",
    "KICI_STALE_DETECTOR_",
)


def of_another_program(variable: str) -> bool:
    """Read by an agent, a command line program or a test: no business of ours."""
    if variable in _LATER:
        return False
    return variable in _OTHERS or variable.startswith(_OTHERS_BEGIN) or variable.endswith(_OTHERS_END)


def of_a_later_version(variable: str) -> bool:
    """Known to operators of the original, but of something that this version does not have."""
    return variable in _LATER or variable.startswith(_LATER_BEGIN)


def misspelt(present: Iterable[str], known: Collection[str]) -> list[tuple[str, str]]:
    """Variables that are none of `known` but nearly one, each with the nearest. Others belong to another program."""
    found = []
    for name in sorted(present):
        if name.startswith("KICI_") and name not in known and (meant := nearest(name, known)):
            found.append((name, meant))
    return found


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that two slips (a letter too much, missing, wrong; two swapped) or fewer lead to."""
    distance, best = min(((_distance(name, other), other) for other in known), default=(3, ""))
    return best if distance <= 2 else None


def _distance(a: str, b: str) -> int:
    """Edits between the two (optimal string alignment); 3 stands for more than 2 where the lengths alone say so."""
    if abs(len(a) - len(b)) > 2:
        return 3
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row, above = row, [i], before
        for j, y in enumerate(b, 1):
            edits = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                edits = min(edits, above[j - 2] + 1)
            row.append(edits)
    return row[-1]
