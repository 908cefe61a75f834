"""The limits of an agent's jobs: what its operator wants, and the default where it can be had."""

from __future__ import annotations

import msgspec

from kici.agent.sandbox import cgroups, podman
from kici.agent.settings import Settings


def limited(settings: Settings) -> Settings:
    """With the default limits.

    Raises `SandboxUnavailable` that names the setting which cannot be kept here.
    """
    if settings.sandbox == "container":
        limits = cgroups.enforceable_by_podman(podman.machine().controllers, settings.limits)
    else:
        limits = cgroups.enforceable(settings.limits)
    return msgspec.structs.replace(settings, job_pids=limits.pids)
