"""What an agent keeps of repositories, for tests of what it fetches."""

from __future__ import annotations

from pathlib import Path

from kici.agent.mirrors import Mirrors
from kici.agent.settings import load


def mirrors(work_dir: Path, *, sandboxed: bool = True, **variables: str) -> Mirrors:
    """`variables`: `KICI_MIRRORS_BYTES="1000"`."""
    given = {"KICI_ORCHESTRATOR_URL": "ws://host:1", "KICI_WORK_DIR": str(work_dir)}
    return Mirrors(load(given | variables), sandboxed=sandboxed)


def no_mirrors(work_dir: Path) -> Mirrors:
    return mirrors(work_dir, KICI_MIRRORS="false")
