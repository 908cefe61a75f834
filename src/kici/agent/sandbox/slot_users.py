"""The users that a root agent's jobs run as: one for each slot, so that the system itself keeps them apart."""

from __future__ import annotations

import os
from pathlib import Path

from kici.agent.sandbox.contract import SandboxUnavailable

FIRST_UID = 60_706
"""Up to 61,183 no distribution, container engine or systemd gives these uids to anything."""
SLOTS = 478
PACKAGES_UIDS = {"trusted": FIRST_UID + SLOTS - 2, "unknown": FIRST_UID + SLOTS - 3}
"""Trust → who installs the packages of workflows for a root agent: no slot's user."""
PROBE_SLOT = SLOTS - 1
"""The last one: no agent may have so many, so a probe meets no job."""
MOST_SLOTS = SLOTS - 3
"""Of one agent, so that these stay nobody's else."""


def owner(slot: int) -> int | None:
    """The uid, and gid, of a slot; None for an agent that is not root. Raises `SandboxUnavailable`."""
    if os.geteuid() != 0:
        return None
    check(slot)
    return FIRST_UID + slot


def check(slot: int) -> None:
    """Raises `SandboxUnavailable` for one that no users are set aside for."""
    if not 0 <= slot < SLOTS:
        raise SandboxUnavailable(f"slot {slot} has no uid: at most {SLOTS} slots")


def hand_over(root: Path, uid: int | None) -> None:
    """Give a job's directory, and what its steps write to, to the slot's user."""
    if uid is not None:
        for directory in (root, *(root / name for name in ("src", "tmp", "home"))):
            os.chown(directory, uid, uid, follow_symlinks=False)
