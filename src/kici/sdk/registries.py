"""Private indexes from which the workflow's own packages come."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct

from kici.sdk.problems import Location, call_site, refuse

MAX_REGISTRIES = 20
_SECRET = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")


class Registry(Struct, frozen=True):
    """Make one by `registry`."""

    url: str
    token_secret: str
    """Name of the secret."""
    name: str | None
    location: Location


RegistryLike: TypeAlias = "Registry | Sequence[Registry]"


def registry(url: str, *, token_secret: str, name: str | None = None) -> Registry:
    """An index of `.kici/pyproject.toml` that wants a token, which is a secret of the jobs: `token_secret="NAME"`, or
    `"env:NAME"`, which is the same. `name` is the index's name there; else it is found by the address.

    The lock file holds the name of the secret. Agents and `kici run local` hand its value to uv for this index alone.
    """
    from kici import index_urls  # late: it costs every workflow module some milliseconds

    subject = f"registry({url!r})"
    if not isinstance(url, str):
        refuse(subject, "its address is not text: write https://host/path")
        url = "https://localhost"
    elif found := index_urls.problem(url):
        refuse("registry(…)" if "@" in url else subject, f"its address {found}")
        url = "https://localhost"
    return Registry(url, _checked_secret(subject, token_secret), _checked_index(subject, name), call_site())


def checked_registries(subject: str, value: object) -> tuple[Registry, ...]:
    if value is None:
        return ()
    from kici import index_urls  # late: see `registry`

    several = value if isinstance(value, (list, tuple)) else (value,)
    found: list[Registry] = []
    for one in several:
        if not isinstance(one, Registry):
            refuse(subject, f'registries: {one!r} is none: write registry("https://…", token_secret="NAME")')
        elif any(index_urls.same(one.url, other.url) for other in found):
            refuse(subject, f"registries: {one.url} stands there twice")
        else:
            found.append(one)
    if len(found) > MAX_REGISTRIES:
        refuse(subject, f"registries: there are {len(found)}; the limit is {MAX_REGISTRIES}")
    return tuple(found[:MAX_REGISTRIES])


def _checked_secret(subject: str, value: object) -> str:
    name = value.removeprefix("env:") if isinstance(value, str) else ""
    if _SECRET.fullmatch(name):
        return name
    # Not shown: it may be the token itself.
    refuse(subject, 'token_secret is no name of a secret: write token_secret="NAME", never the token')
    return "TOKEN"


def _checked_index(subject: str, value: object) -> str | None:
    if value is None or (isinstance(value, str) and _NAME.fullmatch(value)):
        return value
    refuse(subject, f"name is {value!r}: write the name that the index has in .kici/pyproject.toml")
    return None
