"""Environments on a developer's machine, in the user's cache directory: for `kici compile` and `kici run local`.

uv runs as the developer, with the developer's environment: proxies, certificates and credentials for indexes
(`UV_INDEX_<NAME>_PASSWORD`) are those of the shell, unless the workflows name the secret that holds them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from kici.dependencies import uv
from kici.dependencies.declared import LOCK, PROJECT, Declared, key
from kici.dependencies.errors import DependenciesInvalid, SyncFailed

KEPT = 10
"""Environments; the one that was used least recently goes first."""
SYNC_S = 900
_DONE = "complete"


def directory() -> Path:
    """`$XDG_CACHE_HOME/kici/dependencies`, or `~/.cache/kici/dependencies`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "kici" / "dependencies"


def prepared(wanted: Declared, say: Callable[[str], None], tokens: Mapping[str, str] = MappingProxyType({})) -> Path:
    """The site-packages directory of an environment for `wanted`, made if it is not there. Two at once make it once.

    `tokens`: variables of the uv process that hold credentials; those of the shell are there in any case.

    Raises `UvMissing`, `SyncFailed`, `DependenciesInvalid`.
    """
    builds = _builds()
    place = directory() / key(wanted, builds=builds)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place.with_suffix(".lock")):
            if not (place / _DONE).exists():
                shutil.rmtree(place, ignore_errors=True)
                say(f"installing the packages of .kici/{LOCK}")
                _sync(place, wanted, tokens, builds=builds)
                (place / _DONE).touch()
            os.utime(place)
        _forget_old(place)
    except OSError as error:
        raise SyncFailed(f"the packages of .kici/{LOCK} could not be kept in {place.parent}: {error}") from error
    return uv.site_packages(place / "environment")


def _sync(place: Path, wanted: Declared, tokens: Mapping[str, str], *, builds: bool) -> None:
    project = place / "project"
    project.mkdir(parents=True)
    (project / PROJECT).write_bytes(wanted.project)
    (project / LOCK).write_bytes(wanted.lock)
    environment = os.environ | {"UV_PROJECT_ENVIRONMENT": str(place / "environment"), "UV_PYTHON_DOWNLOADS": "never"}
    environment.pop("VIRTUAL_ENV", None)
    environment |= tokens
    try:
        done = subprocess.run(
            uv.sync_argv(uv.find_uv(), str(project), builds=builds),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=SYNC_S,
        )
    except subprocess.TimeoutExpired:
        raise SyncFailed(f"uv took longer than {SYNC_S} s to install the packages of .kici/{LOCK}") from None
    if done.returncode:
        said = uv.told(_without(done.stdout.decode(errors="replace"), tokens))
        raise SyncFailed(f"the packages of .kici/{LOCK} could not be installed: {said}")


def _without(said: str, tokens: Mapping[str, str]) -> str:
    for name, value in tokens.items():
        if name.endswith("_PASSWORD"):
            said = said.replace(value, "***")
    return said


def _builds() -> bool:
    value = os.environ.get(uv.BUILDS_VARIABLE, "").strip().lower()
    if value not in ("", "true", "false"):
        raise DependenciesInvalid(f"{uv.BUILDS_VARIABLE} is neither `true` nor `false`")
    return value == "true"


def _forget_old(used: Path) -> None:
    kept = sorted((path for path in used.parent.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for old in kept[:-KEPT]:
        if old != used:
            with _locked(old.with_suffix(".lock")):
                shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
