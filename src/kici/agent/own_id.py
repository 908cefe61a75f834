"""The name of an agent that was given none: made once, and kept in its work directory.

An agent that comes back under another name cannot settle what it ran before, and leaves a row behind each time.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from pathlib import Path

from kici.agent.errors import SettingsInvalid

NAME = ".agent-id"


def found(work_dir: Path) -> str:
    """The one that is kept; empty if there is none for this machine. Raises `SettingsInvalid`.

    A copy of another machine's directory does not give its name to this one.
    """
    path = work_dir / NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise SettingsInvalid(f"{path} cannot be read ({error.strerror}): remove it, or set KICI_AGENT_ID") from error
    with open(descriptor, encoding="utf-8", errors="replace") as file:
        name = file.read(1_000).strip()
    return name if re.fullmatch(re.escape(socket.gethostname()) + r"-[0-9a-f]{8}", name) else ""


def kept(work_dir: Path) -> str:
    """With the lock of `work_dir` held."""
    if name := found(work_dir):
        return name
    path = work_dir / NAME
    made = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    try:
        new = path.with_suffix(".new")
        new.unlink(missing_ok=True)
        new.write_text(made + "\n")
        new.replace(path)
    except OSError as error:
        raise SettingsInvalid(f"{path} cannot be written ({error.strerror}): set KICI_AGENT_ID") from error
    return made
