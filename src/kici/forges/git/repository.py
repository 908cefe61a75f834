"""The bare repository that the orchestrator keeps: a place to push to for whoever has no forge."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from kici.forges.git import command
from kici.forges.git.errors import GitFailed
from kici.forges.local.hook_files import HookConfig, install_hook

_CONFIG = {
    "uploadpack.allowAnySHA1InWant": "true",  # agents fetch the commit of their run, not a branch
    "uploadpack.allowFilter": "true",
    "receive.fsckObjects": "true",
}


async def keep(directory: Path, hook: HookConfig, *, python: str = sys.executable) -> None:
    """Make the repository if it is not there, and bring its settings and its hook up to date. May be repeated."""
    if not directory.exists():
        await _create(directory)
    for key, value in _CONFIG.items():
        await _git("--git-dir", str(directory), "config", key, value)
    install_hook(directory, hook, python=python)


async def _create(directory: Path) -> None:
    """Made beside and renamed: what is there is whole."""
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        await _git("init", "--quiet", "--bare", "--template=", "--initial-branch=main", str(new))
        new.rename(directory)
    finally:
        shutil.rmtree(new, ignore_errors=True)


async def _git(*args: str) -> None:
    done = await command.run(args)
    if done.code:
        raise GitFailed(f"git {args[-1]} failed: {done.stderr.decode(errors='replace').strip()[-500:]}")
