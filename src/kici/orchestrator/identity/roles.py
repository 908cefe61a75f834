"""What each role may do. Deny by default: a permission that a role does not name, it does not have."""

from __future__ import annotations

OPERATE = frozenset(
    {
        "agent.drain",
        "agent.read",
        "backend.manage",
        "backend.read",
        "cluster.read",
        "config.read",
        "config.write",
        "context.create",
        "context.delete",
        "context.read",
        "context.update",
        "access_log.read",
        "audit.read",
        "diagnostics.read",
        "environment.read",
        "environment.write",
        "event_dlq.manage",
        "event_dlq.read",
        "event_log.read",
        "event_log.read_payload",
        "execution.read",
        "fleet.read",
        "held_run.decide",
        "held_run.read",
        "orchestrator.drain",
        "org_settings.read",
        "org_settings.write",
        "queue.manage",
        "queue.read",
        "run.cancel",
        "run.read",
        "run.rerun",
        "run.trigger",
        "scaler.read",
        "schedule.fire",
        "scheduled_job.read",
        "scheduled_job.trigger",
        "secret.delete",
        "secret.read",
        "secret.reveal",
        "secret.write",
        "source.manage",
        "source.read",
        "step_log.read",
    }
)

ROLES: dict[str, frozenset[str]] = {
    "owner": OPERATE | {"token.manage", "key.rotate", "db.migrate", "maintenance.purge"},
    "admin": OPERATE,
    "auditor": frozenset(
        {
            "access_log.read",
            "agent.read",
            "audit.read",
            "backend.read",
            "cluster.read",
            "config.read",
            "context.read",
            "diagnostics.read",
            "environment.read",
            "event_dlq.read",
            "event_log.read",
            "execution.read",
            "held_run.read",
            "org_settings.read",
            "queue.read",
            "run.read",
            "scaler.read",
            "scheduled_job.read",
            "source.read",
            "step_log.read",
        }
    ),
    "developer": frozenset({"run.read", "run.trigger", "step_log.read"}),
}

PERMISSIONS = ROLES["owner"]


def may(role: str, permission: str) -> bool:
    """Whether the role has the permission. An unknown role has none."""
    return permission in ROLES.get(role, frozenset())
