"""Where the orchestrator keeps what is its own: the embedded database, objects, its master key."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kici.orchestrator.settings import Settings, SettingsError


def choose(settings: Settings, environ: Mapping[str, str]) -> Path:
    """`KICI_DATA_DIR`, else the first usual place that can be written to. Made if it does not exist."""
    if "KICI_DATA_DIR" in environ:
        candidates = [settings.data_dir.absolute()]
    else:
        state = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME") or "/") / ".local" / "state")
        candidates = [settings.data_dir, Path(state) / "kici", Path(tempfile.gettempdir()) / "kici-data"]
    for candidate in candidates:
        if _writable(candidate):
            return candidate
    raise SettingsError(f"data-dir: no writable directory among candidates: {', '.join(map(str, candidates))}")


def _writable(folder: Path) -> bool:
    """Others may pass through to what is theirs (the database's user), but not list what is here."""
    probe = folder / f".write-probe-{os.getpid()}"
    try:
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o711)
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True
