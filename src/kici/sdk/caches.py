"""Caches: files that outlive a job and are found again by a key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from kici.sdk.problems import refuse

MAX_KEY = 512
MAX_PATHS = 64


class Cache(Struct, frozen=True):
    """Make one by `cache`."""

    key: str
    paths: tuple[str, ...]
    restore: tuple[str, ...] = ()


def cache(key: str, *, paths: str | Sequence[str], restore: str | Sequence[str] = ()) -> Cache:
    """Files to restore before a job, step or init command, and to save after its success.

    The key is a template: next to the fields of every template it knows `{os}`, `{arch}` and `{hash:uv.lock,*.toml}`,
    the SHA-256 of files in the checkout. `paths` are relative to the checkout, or below `~/`. If nothing has the key,
    the newest entry whose key begins with the first of `restore` that finds one is taken, and a new entry is saved
    under the key. An entry never changes: another content wants another key. A cache that cannot be restored or saved
    is told in the log and fails nothing.
    """
    subject = f"cache({key!r})"
    if not isinstance(key, str) or not key.strip() or len(key) > MAX_KEY or not key.isprintable():
        refuse(subject, f"the key is {key!r}: write one line of 1 to {MAX_KEY} characters")
        key = "?"
    found = tuple(_checked_path(subject, path) for path in _several(paths))
    if not 0 < len(found) <= MAX_PATHS:
        refuse(subject, f'paths names {len(found)} paths: write 1 to {MAX_PATHS}, for example paths=["node_modules"]')
        found = found[:MAX_PATHS] or (".cache",)
    prefixes = tuple(_several(restore))
    if not all(isinstance(prefix, str) and prefix.strip() for prefix in prefixes):
        refuse(subject, f"restore is {restore!r}: write prefixes of keys")
        prefixes = ()
    return Cache(key, found, tuple(map(str, prefixes)))


def checked_caches(subject: str, value: object) -> tuple[Cache, ...]:
    """One cache or several."""
    several = value if isinstance(value, (list, tuple)) else () if value is None else (value,)
    found = []
    for one in several:
        if isinstance(one, Cache):
            found.append(one)
        else:
            refuse(subject, f'cache: {one!r} is no cache: write cache("key", paths=["directory"])')
    return tuple(found)


def _checked_path(subject: str, path: object) -> str:
    if not isinstance(path, str) or not path.strip() or "\0" in path or "\\" in path:
        refuse(subject, f'paths: {path!r} is no path: write for example "node_modules" or "~/.cache/uv"')
        return ".cache"
    below = path.removeprefix("~/")
    if below.startswith(("/", "~")) or ".." in below.split("/") or below.strip("/.") == "":
        refuse(subject, f"paths: {path!r} leaves the checkout and the home directory: write a path below one of them")
        return ".cache"
    return path


def _several(value: object) -> Iterable[object]:
    return value if isinstance(value, (list, tuple)) else (value,)
