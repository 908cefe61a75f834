"""Who runs the embedded server and owns its files: we ourselves, or somebody unprivileged when we are root."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from msgspec import Struct

from kici.orchestrator.store.postgres.errors import EmbeddedPostgresError

UNPRIVILEGED = ("postgres", "daemon", "nobody")
"""Who it is when we are root; the first that exists. initdb refuses a uid without a name."""
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
"""Nothing of ours: the server needs no secret that our environment may hold."""


class Owner(Struct, frozen=True):
    uid: int
    gid: int
    name: str

    def start(
        self, command: Sequence[str], output: IO[bytes], *, inherits: Sequence[int] = ()
    ) -> subprocess.Popen[bytes]:
        """Start a program as this user, in a session of its own: Ctrl-C at our terminal is not for it."""
        drops = os.geteuid() == 0
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env=ENVIRONMENT,
            start_new_session=True,
            umask=0o077,
            pass_fds=inherits,
            user=self.uid if drops else None,
            group=self.gid if drops else None,
            extra_groups=[] if drops else None,
        )

    def barrier(self, path: Path) -> Path | None:
        """The first directory on the way to `path` that this user may not pass, or None."""
        for folder in reversed(path.resolve().parents):
            status = folder.stat()
            bit = 0o100 if status.st_uid == self.uid else 0o010 if status.st_gid == self.gid else 0o001
            if not status.st_mode & bit:
                return folder
        return None


def choose(data: Path) -> Owner:
    """The owner of `data` if it exists, else the one who is to make it."""
    if os.geteuid() != 0:
        return Owner(os.geteuid(), os.getegid(), _name(os.geteuid()))
    if data.exists() and (status := data.stat()).st_uid != 0:
        return Owner(status.st_uid, status.st_gid, _name(status.st_uid))
    for name in UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Owner(entry.pw_uid, entry.pw_gid, name)
    raise EmbeddedPostgresError(
        f"PostgreSQL does not run as root, and none of the users {', '.join(UNPRIVILEGED)} exists:"
        " add one, or run kici as another user"
    )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
