"""Fan-out of a job over a matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from msgspec import Struct

from kici.engine.errors import MatrixError
from kici.engine.lockfile import MAX_MATRIX_COMBINATIONS


class Combination(Struct, frozen=True):
    values: dict[str, str]
    suffix: str
    """`3.11, linux`: values in the order of the dimensions' names."""


def expand(
    matrix: Mapping[str, Sequence[str]],
    include: Sequence[Mapping[str, str]] = (),
    exclude: Sequence[Mapping[str, str]] = (),
) -> tuple[Combination, ...]:
    """All combinations: the product (last dimension fastest, dimensions by name), minus `exclude`, plus `include`.

    An exclude entry drops what equals it in all its keys; an empty one drops nothing. An include entry that already
    exists is not added twice. Raises `MatrixError` for none, or for more than 256.
    """
    names = sorted(matrix)
    size = 1
    for name in names:
        size *= len(matrix[name])
    if size > MAX_MATRIX_COMBINATIONS * 64:
        raise MatrixError(
            f"the matrix has {size:,} combinations before exclusions; the limit is {MAX_MATRIX_COMBINATIONS}"
        )
    found: list[dict[str, str]] = []
    for values in product(*(matrix[name] for name in names)) if names else ():
        combination = dict(zip(names, values, strict=True))
        if combination not in found and not any(_covers(entry, combination) for entry in exclude):
            found.append(combination)
    for entry in include:
        if entry and dict(entry) not in found:
            found.append(dict(sorted(entry.items())))
    if not found:
        raise MatrixError("the matrix has no combination: every one is excluded, or a dimension is empty")
    if len(found) > MAX_MATRIX_COMBINATIONS:
        raise MatrixError(f"the matrix has {len(found)} combinations; the limit is {MAX_MATRIX_COMBINATIONS}")
    return tuple(Combination(values, ", ".join(values.values())) for values in found)


def _covers(entry: Mapping[str, str], combination: Mapping[str, str]) -> bool:
    return bool(entry) and all(combination.get(name) == value for name, value in entry.items())
