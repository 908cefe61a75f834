"""What the CLI remembers between two commands: the file `config` below `KICI_CONFIG_DIR`, or `~/.kici`.

JSON with `url` and `token`, mode 0600. `kici login` and `kici up` write it.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from kici.errors import KiciError


class BadConfig(KiciError):
    code = "config_invalid"


def file() -> Path:
    return Path(os.environ.get("KICI_CONFIG_DIR") or Path.home() / ".kici") / "config"


def remembered() -> dict[str, str]:
    """`url` and `token`, each only if it is there. Raises `BadConfig`."""
    path = file()
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BadConfig(f"{path} cannot be read as JSON: repair or remove it") from error
    if not isinstance(found, dict):
        raise BadConfig(f"{path} is not an object with url and token: repair or remove it")
    return {name: str(found[name]) for name in ("url", "token") if found.get(name)}


def remember(*, url: str, token: str) -> Path:
    """Readable by its owner only; replaces what was there."""
    path = file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as written:
        written.write(json.dumps({"url": url, "token": token}, indent=2) + "\n")
    temporary.replace(path)
    return path


def forget() -> bool:
    """False: there was nothing."""
    try:
        file().unlink()
    except FileNotFoundError:
        return False
    return True


def readable_by_others() -> bool:
    try:
        return bool(stat.S_IMODE(file().stat().st_mode) & 0o077)
    except OSError:
        return False
