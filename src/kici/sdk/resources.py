"""What a job needs of its machine, and the most that it may use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias, TypedDict

from msgspec import Struct

from kici.nearest import nearest
from kici.sdk.problems import refuse
from kici.sdk.sizes import Size, size_bytes

MAX_CPUS = 256
MIN_CPUS = 0.01
MIN_MEMORY_BYTES = 64 * 1024**2
"""The runner alone takes half of it."""
MAX_MEMORY_BYTES = 1024**5


class Amounts(TypedDict, total=False):
    cpus: float
    """Of processor time per second: 0.5 is half of one core; 0.01 to 256."""
    memory: Size
    """`"512m"`, `"4g"`; at least 64m."""


class ResourcesMapping(Amounts, total=False):
    """Either `cpus` and `memory`, or `requests` and `limits`."""

    requests: Amounts
    limits: Amounts


class Resources(Struct, frozen=True, kw_only=True):
    """For `resources=` of a job: `Resources(cpus=2, memory="4g")`, or requests and limits apart."""

    cpus: float | None = None
    memory: Size | None = None
    requests: Amounts | None = None
    """What the machine must be able to give, or the job fails before its first step."""
    limits: Amounts | None = None
    """What all processes of the job may use together. A side that is left out is as the other."""


ResourcesLike: TypeAlias = "Resources | ResourcesMapping"


class Amount(Struct, frozen=True):
    """Checked. None = nothing is said about it."""

    cpu_millis: int | None = None
    """Thousandths of a core."""
    memory_bytes: int | None = None


class Demand(Struct, frozen=True):
    """What a job's `resources` say, with both sides filled in."""

    requests: Amount
    limits: Amount


_FLAT = ("cpus", "memory")
_SIDES = ("requests", "limits")
_EXAMPLE = 'write resources={"cpus": 2, "memory": "4g"}, or {"requests": {…}, "limits": {…}}'


def checked_resources(subject: str, value: object) -> Demand | None:
    if value is None:
        return None
    subject = f"{subject}: resources"
    given = _given(subject, value)
    flat = {name: one for name, one in given.items() if name in _FLAT}
    sides = {name: _amount(f"{subject}: {name}", one) for name, one in given.items() if name in _SIDES}
    if flat and sides:
        refuse(subject, f"{' and '.join(flat)} stand beside {' and '.join(sides)}: {_EXAMPLE}")
        return None
    if flat:
        sides = {"limits": _amount(subject, flat)}
    if not sides:
        refuse(subject, f"they say nothing: {_EXAMPLE}")
        return None
    requests = sides.get("requests") or sides["limits"]
    limits = sides.get("limits") or requests
    _check_order(subject, requests, limits)
    return Demand(requests, limits)


def _given(subject: str, value: object) -> dict[str, Any]:
    if isinstance(value, Resources):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return {name: one for name, one in fields.items() if one is not None}
    if not isinstance(value, Mapping):
        refuse(subject, f"{value!r} are none: {_EXAMPLE}")
        return {}
    known = (*_FLAT, *_SIDES)
    for name in value:
        if name not in known:
            refuse(subject, f"there is no {name!r}{nearest(str(name), known)}; there are {', '.join(known)}")
    return {name: one for name, one in value.items() if name in known}


def _amount(subject: str, value: object) -> Amount:
    if not isinstance(value, Mapping):
        refuse(subject, f'{value!r} is no amount: write {{"cpus": 2, "memory": "4g"}}')
        return Amount()
    for name in value:
        if name not in _FLAT:
            refuse(subject, f"there is no {name!r}{nearest(str(name), _FLAT)}; there are {', '.join(_FLAT)}")
    if not value:
        refuse(subject, "it says neither cpus nor memory")
    return Amount(_millis(subject, value.get("cpus")), _memory(subject, value.get("memory")))


def _millis(subject: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and MIN_CPUS <= value <= MAX_CPUS:  # also no nan
        return math.floor(value * 1000 + 1e-6)
    refuse(subject, f"cpus is {value!r}: write a number of cores from {MIN_CPUS} to {MAX_CPUS}, such as 2 or 0.5")
    return None


def _memory(subject: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        found = size_bytes(value)
    except ValueError as error:
        refuse(subject, f"memory: {error}")
        return None
    if MIN_MEMORY_BYTES <= found <= MAX_MEMORY_BYTES:
        return found
    refuse(subject, f'memory is {value!r}: write a size from "64m", of which the runner takes half, to 1,048,576g')
    return None


def _check_order(subject: str, requests: Amount, limits: Amount) -> None:
    for name, wanted, most in (
        ("cpus", requests.cpu_millis, limits.cpu_millis),
        ("memory", requests.memory_bytes, limits.memory_bytes),
    ):
        if wanted is not None and most is not None and wanted > most:
            refuse(subject, f"{name}: the request is above the limit: a job may use at least what it needs")
