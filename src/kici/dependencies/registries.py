"""The tokens of private indexes, as uv takes them: in its environment, by the index's name, for that origin alone."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from msgspec import Struct

from kici import index_urls
from kici.dependencies.declared import PROJECT
from kici.dependencies.errors import DependenciesInvalid

USER = "__token__"
"""Whose password the token is, unless there is a secret `UV_INDEX_<NAME>_USERNAME`."""


class Private(Protocol):
    """As the lock file names it."""

    @property
    def url(self) -> str: ...
    @property
    def token_secret(self) -> str: ...
    @property
    def name(self) -> str | None: ...


class Found(Struct, frozen=True):
    """By reading the sources, before anything runs."""

    url: str
    token_secret: str
    name: str | None = None


def problem(project: bytes | None, registry: Private) -> str:
    """Why the registry cannot be used with this `.kici/pyproject.toml`, and the way out; empty = it can."""
    if refused := index_urls.problem(registry.url):
        return f"registry {registry.url}: its address {refused}"
    indexes = list(_indexes(project))
    matching = [name for name, url in indexes if index_urls.same(url, registry.url)]
    wanted = f'[[tool.uv.index]] with name = "{registry.name or "internal"}" and url = "{registry.url}"'
    if not matching:
        return f"registry {registry.url}: no index of .kici/{PROJECT} has this address: write {wanted}, and `uv lock`"
    name = registry.name or next(filter(None, matching), "")
    if not name or name not in matching:
        has = f"is called {matching[0]!r} there" if matching[0] else "has no name there"
        return f"registry {registry.url}: its index {has}: write {wanted} in .kici/{PROJECT}, and `uv lock`"
    for other, url in indexes:
        if other and _variable(other) == _variable(name) and not index_urls.same(url, registry.url):
            return f"registry {registry.url}: uv takes the indexes {name!r} and {other!r} for one: rename one"
    return ""


def opened(
    project: bytes, registries: Iterable[Private], secrets: Mapping[str, str], *, lenient: bool = False
) -> dict[str, str]:
    """Variables of the uv process. Raises `DependenciesInvalid` for a registry that cannot be used, or whose token is
    not among the secrets, unless `lenient`: then it has none."""
    found: dict[str, str] = {}
    for registry in registries:
        refused = problem(project, registry)
        if not refused and not secrets.get(registry.token_secret):
            refused = (
                f"registry {registry.url}: its token, the secret {registry.token_secret}, is not among the secrets of"
                " this job: set it, and remember that pull requests from outside get none"
            )
        if refused:
            if lenient:
                continue
            raise DependenciesInvalid(refused)
        name = registry.name or next(n for n, url in _indexes(project) if n and index_urls.same(url, registry.url))
        user, password = (f"UV_INDEX_{_variable(name)}_{what}" for what in ("USERNAME", "PASSWORD"))
        found |= {user: secrets.get(user) or USER, password: secrets[registry.token_secret]}
    return found


def _indexes(project: bytes | None) -> Iterator[tuple[str, str]]:
    """Name, which may be empty, and address. Raises `DependenciesInvalid`."""
    try:
        table: Any = tomllib.loads((project or b"").decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DependenciesInvalid(f".kici/{PROJECT} cannot be read: {error}") from error
    for part in ("tool", "uv", "index"):
        table = table.get(part) if isinstance(table, dict) else None
    for one in table if isinstance(table, list) else ():
        if isinstance(one, dict) and isinstance(one.get("url"), str):
            name = one.get("name")
            yield (name if isinstance(name, str) else ""), one["url"]


def _variable(name: str) -> str:
    """As uv spells it."""
    return re.sub(r"[^A-Z0-9]", "_", name.upper())
