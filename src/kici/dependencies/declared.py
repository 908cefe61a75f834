"""What a repository declares, and the key under which an environment for it is kept."""

from __future__ import annotations

import hashlib
import platform
import sys
import sysconfig
import tomllib
from collections.abc import Mapping

from msgspec import Struct

from kici.dependencies.errors import DependenciesInvalid

PROJECT, LOCK = "pyproject.toml", "uv.lock"
_LAYOUT = "1"
"""Of what is kept; another one makes every key another."""


class Declared(Struct, frozen=True):
    project: bytes
    lock: bytes


def declared(files: Mapping[str, bytes]) -> Declared | None:
    """Of the files under `.kici/`. None where workflows need no packages. Raises `DependenciesInvalid`."""
    project, lock = files.get(PROJECT), files.get(LOCK)
    if lock is not None and project is None:
        raise DependenciesInvalid(f".kici/{LOCK} is there without .kici/{PROJECT}: commit both, or remove it")
    if project is None:
        return None
    if lock is None:
        if _names_packages(project):
            raise DependenciesInvalid(
                f".kici/{PROJECT} names packages and .kici/{LOCK} is missing: run `uv lock` there"
            )
        return None
    return Declared(project, lock)


def key(wanted: Declared, *, builds: bool, scope: str = "") -> str:
    """Of everything that the environment depends on: what is declared, and the interpreter, its ABI and the platform.

    `scope` keeps environments apart that others must not find, whoever declares the same.
    """
    parts = (
        *(_LAYOUT, hashlib.sha256(wanted.project).hexdigest(), hashlib.sha256(wanted.lock).hexdigest()),
        *(sys.implementation.cache_tag or "", platform.python_version(), sysconfig.get_config_var("EXT_SUFFIX") or ""),
        *(sysconfig.get_platform(), *platform.libc_ver(), "builds" if builds else "wheels", scope),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def _names_packages(project: bytes) -> bool:
    try:
        table = tomllib.loads(project.decode()).get("project", {})
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DependenciesInvalid(f".kici/{PROJECT} cannot be read: {error}") from error
    return isinstance(table, dict) and bool(table.get("dependencies"))
