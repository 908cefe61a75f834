"""What the jobs of a workflow may do through the orchestrator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, TypedDict

from kici.nearest import nearest
from kici.sdk.problems import refuse


class Permissions(TypedDict, total=False):
    """What is left out is `"none"`; `"write"` is also `"read"`."""

    artifacts: Literal["none", "read", "write"]
    caches: Literal["none", "read", "write"]
    events: Literal["none", "write"]
    secret_outputs: Literal["none", "write"]


PermissionsLike: TypeAlias = 'Permissions | Literal["read-all", "write-all"]'

_LEVELS: dict[str, tuple[str, ...]] = {
    "artifacts": ("none", "read", "write"),
    "caches": ("none", "read", "write"),
    "events": ("none", "write"),
    "secret_outputs": ("none", "write"),
}
_ALL = {
    "read-all": {"artifacts": "read", "caches": "read"},
    "write-all": {"artifacts": "write", "caches": "write", "events": "write", "secret_outputs": "write"},
}
_LATER = ("attestations", "contents", "id_token")


def checked_permissions(subject: str, value: object) -> dict[str, str] | None:
    """None: nothing is said, and jobs may do everything. Without what is `"none"`."""
    if value is None:
        return None
    subject = f"{subject}: permissions"
    if isinstance(value, str) and value in _ALL:
        return dict(_ALL[value])
    if not isinstance(value, Mapping):
        refuse(subject, f'{value!r} are none: write {{"caches": "read", …}}, "read-all" or "write-all"')
        return {}
    found = {}
    for kind, level in value.items():
        if kind in _LATER:
            refuse(subject, f"{kind!r} is not there yet: it is planned, but not in this version")
        elif kind not in _LEVELS:
            refuse(subject, f"there is no {kind!r}{nearest(str(kind), _LEVELS)}; there are {', '.join(_LEVELS)}")
        elif level not in _LEVELS[kind]:
            near = nearest(str(level), _LEVELS[kind])
            refuse(subject, f"{kind}: there is no {level!r}{near}; it is one of {', '.join(_LEVELS[kind])}")
        elif level != "none":
            found[kind] = level
    return found
