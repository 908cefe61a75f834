"""Where a command's repository is."""

from __future__ import annotations

from pathlib import Path

from kici.errors import KiciError


class NoRepository(KiciError):
    code = "no_repository"


def root(start: Path | None = None) -> Path:
    """The nearest directory, from here upwards, that has a `.kici/`. Raises `NoRepository`."""
    here = (start or Path.cwd()).resolve()
    for directory in (here, *here.parents):
        if directory.name != ".kici" and (directory / ".kici").is_dir() and directory != Path.home():
            return directory
    raise NoRepository(f"neither {here} nor a directory above it has a .kici/: `kici init` makes the first workflow")
