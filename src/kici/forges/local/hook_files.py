"""What a local repository holds for its hook, all of it readable by its owner only.

hooks/post-receive    starts `kici.forges.local.post_receive`
kici/hook.json        where to deliver, and the secret that signs it
kici/spool/           deliveries that the orchestrator has not taken yet
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import NamedTuple


class HookConfig(NamedTuple):
    url: str
    """Of the source: `http://127.0.0.1:4000/webhook/<name>`."""
    secret: str
    repository: str
    """`owner/name`, as events show it."""

    def __repr__(self) -> str:
        return f"HookConfig(url={self.url!r}, repository={self.repository!r})"


def config_file(repository: Path) -> Path:
    return repository / "kici" / "hook.json"


def spool_directory(repository: Path) -> Path:
    return repository / "kici" / "spool"


def read_config(repository: Path) -> HookConfig:
    """Raises OSError or ValueError."""
    found = json.loads(config_file(repository).read_text())
    try:
        return HookConfig(found["url"], found["secret"], found["repository"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{config_file(repository)} is not complete") from error


def install_hook(repository: Path, config: HookConfig, *, python: str) -> None:
    """Make a bare repository deliver its pushes. May be repeated, and then changes what is different.

    `python` is the interpreter that has kici installed: the hook does not depend on the environment of who pushes.
    """
    spool_directory(repository).mkdir(mode=0o700, parents=True, exist_ok=True)
    _replace(config_file(repository), json.dumps(config._asdict(), indent=2) + "\n", mode=0o600)
    command = shlex.join([python, "-I", "-m", "kici.forges.local.post_receive"])
    _replace(repository / "hooks" / "post-receive", f"#!/bin/sh\nexec {command}\n", mode=0o755)


def _replace(file: Path, text: str, *, mode: int) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as out:
        out.write(text)
    new.chmod(mode)
    new.replace(file)
