"""Events that are kept as files: `.kici/events/NAME.json`."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from kici.engine.event_files import DIRECTORY, decode
from kici.engine.events import Event
from kici.errors import KiciError
from kici.nearest import nearest
from kici.testing.events import REPO, SHA


def fixture(name: str, *, root: Path | str | None = None) -> Event:
    """The event in `.kici/events/NAME.json`: an object of the fields of an event in camelCase, `type` at least.

    Looked for in `root`, else from the current directory upwards. Raises `KiciError` with what is wrong.
    """
    start = Path(root) if root is not None else Path.cwd()
    directory = _events(start.resolve())
    path = directory / f"{name.removesuffix('.json')}.json"
    if not path.is_file():
        there = sorted(one.stem for one in directory.glob("*.json"))
        raise KiciError(f"{directory} has no {path.name}{nearest(name, there)}; it has {', '.join(there) or 'nothing'}")
    return read(path)


def read(path: Path) -> Event:
    """The event that a file holds; a commit, a repository and an actor are filled in where it has none."""
    try:
        event = decode(path.read_bytes(), str(path))
    except OSError as error:
        raise KiciError(f"{path} cannot be read: {error.strerror}") from error
    return replace(event, sha=event.sha or SHA, repo=event.repo or REPO, actor=event.actor or "tester")


def _events(start: Path) -> Path:
    for directory in (start, *start.parents):
        if (directory / ".kici").is_dir():
            return directory / DIRECTORY
    raise KiciError(f"neither {start} nor a directory above it has a .kici/: name it by root=")
