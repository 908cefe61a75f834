"""Where mirrors lie: apart by trust, by the repository's address and by kind; and how much room they may take.

`<work dir>/mirrors/<trust>/<key><kind>/`, each for its own, all within one limit.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from kici.agent import trash
from kici.agent.kept_directories import KeptDirectories
from kici.agent.kept_packs import ADDRESS
from kici.agent.settings import Settings
from kici.engine.events import Trust

NAME = "mirrors"


class MirrorPlaces:
    def __init__(self, settings: Settings, *, sandboxed: bool) -> None:
        """Without a sandbox jobs are the agent's own user and could write in a mirror: then there is none."""
        self.work_dir = settings.work_dir
        self.are_kept = settings.mirrors and sandboxed
        self.limit_bytes = settings.mirrors_bytes
        self._min_free_bytes = settings.min_free_bytes
        self.directories = KeptDirectories("mirrors", settings.work_dir, settings.mirrors_bytes, self._all)

    def of(self, url: str, *, trusted: bool, kind: str = "") -> Path:
        key = hashlib.sha256(_normal(url).encode()).hexdigest()[:32]
        trust = Trust.TRUSTED if trusted else Trust.UNKNOWN
        return self.work_dir / NAME / trust.value / f"{key}{kind}"

    def make(self, place: Path, url: str) -> None:
        """With the address in it, for people."""
        for directory in (place.parent.parent, place.parent, place):
            directory.mkdir(mode=0o700, exist_ok=True)
            directory.chmod(0o700)
        (place / ADDRESS).write_text(f"{url}\n")

    def throw(self, place: Path) -> None:
        trash.throw(self.work_dir, place)

    def has_room(self, more_bytes: int) -> bool:
        """For copies; a link takes none."""
        return shutil.disk_usage(self.work_dir).free - more_bytes >= self._min_free_bytes

    def _all(self) -> Iterator[Path]:
        return (self.work_dir / NAME).glob("*/*")


def _normal(url: str) -> str:
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port not in (None, {"http": 80, "https": 443}[parts.scheme]) else ""
    return f"{parts.scheme}://{(parts.hostname or '').lower()}{port}{parts.path.rstrip('/')}?{parts.query}"
