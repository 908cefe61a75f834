"""What the agent says about its machine, and what it needs there."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterable
from typing import Any

from kici.agent.errors import SettingsInvalid
from kici.agent.sandbox.choose import Choice
from kici.agent.settings import Settings
from kici.engine import labels
from kici.wire.context import AgentFacts

TOOLS = ("git", "bash", "tar")


def check_tools() -> None:
    """Raises `SettingsInvalid` that names everything that is missing."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise SettingsInvalid(
            f"not found on PATH: {', '.join(missing)}. Install them: the agent needs {', '.join(TOOLS)}"
        )


def machine_labels() -> tuple[str, ...]:
    return labels.automatic(platform.system(), platform.machine(), socket.gethostname())


def automatic_labels(choice: Choice) -> tuple[str, ...]:
    return (*machine_labels(), *choice.labels)


def of_agent(settings: Settings, choice: Choice) -> AgentFacts:
    """What steps see of the agent that runs them."""
    given = automatic_labels(choice)
    return AgentFacts(
        settings.agent_id, (*settings.labels, *given), _first(given, "kici:os:"), _first(given, "kici:arch:")
    )


def _first(given: Iterable[str], prefix: str) -> str:
    return next((label.removeprefix(prefix) for label in given if label.startswith(prefix)), "")


def facts(choice: Choice) -> dict[str, Any]:
    """For people only; nothing is decided by it."""
    return {
        "hostname": socket.gethostname(),
        "os": platform.system().lower(),
        "release": platform.release(),
        "arch": platform.machine(),
        "cpus": os.cpu_count() or 0,
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1_048_576,
        "sandbox": choice.sandbox.name,
        "sandbox_profile": choice.profile,
        "sandbox_fallback": choice.fallback,
        "python": platform.python_version(),
        "executable": sys.executable,
        "uid": os.getuid(),
    }
