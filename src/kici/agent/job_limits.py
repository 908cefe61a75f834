"""The limits of an agent's jobs: what its operator wants, and the default where it can be had."""

from __future__ import annotations

import msgspec

from kici.agent.sandbox import cgroups
from kici.agent.settings import Settings


def limited(settings: Settings) -> Settings:
    """With the default limits. Those of containers podman sets; whether it does, is seen when one starts.

    Raises `SandboxUnavailable` that names the setting which cannot be kept here.
    """
    if settings.sandbox == "container":
        return msgspec.structs.replace(settings, job_pids=settings.job_pids or cgroups.DEFAULT_PIDS)
    return msgspec.structs.replace(settings, job_pids=cgroups.enforceable(settings.limits).pids)
