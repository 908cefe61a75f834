from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.sdk.errors import DefinitionError, OutputInvalid
from kici.sdk.outputs import from_data, return_type, schema, to_data

if TYPE_CHECKING:
    from nowhere import Ctx  # type: ignore[import-not-found]


class Level(Enum):
    LOW = "low"


@dataclass
class Wheel:
    version: str
    path: Path
    sizes: dict[int, float] = field(default_factory=dict)
    built: datetime | None = None


class Built(msgspec.Struct):
    wheels: list[Wheel]
    level: Level = Level.LOW


class Named(TypedDict):
    name: str


class Point(NamedTuple):
    x: int
    y: int


def test_only_the_return_annotation_is_resolved() -> None:
    def build(ctx: Ctx) -> list[Wheel]:
        return []

    def bare(ctx): ...  # type: ignore[no-untyped-def]

    def nothing(ctx: Ctx) -> None: ...

    assert return_type(build) == list[Wheel]
    assert return_type(bare) is Any
    assert schema(return_type(nothing)) is None


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (Wheel("1", Path("dist/a.whl"), {1: 0.5}, datetime(2026, 1, 2, tzinfo=UTC)), Wheel),
        (Built([Wheel("1", Path("a"))]), Built),
        ({"name": "x"}, Named),
        (Point(1, 2), Point),
        ({"a": (1, {"b"})}, dict[str, tuple[int, set[str]]]),
        (None, None),
        ("text", str),
        (b"\x00\xff", bytes),
        ([1, "x", None], Any),
    ],
)
def test_what_is_returned_comes_back_as_it_was(value: Any, annotation: Any) -> None:
    data = to_data(value, annotation)
    assert msgspec.json.decode(msgspec.json.encode(data)) == data
    assert from_data(data, annotation) == value
    schema(annotation)


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), st.lists, max_leaves=20))
def test_any_json_comes_back_as_it_was(value: Any) -> None:
    assert from_data(to_data(value, Any), Any) == value


@pytest.mark.parametrize(
    ("value", "annotation", "said"),
    [
        (Wheel(1, Path("a")), Wheel, r"not Wheel: Expected `str`, got `int` - at `\$.version`"),  # type: ignore[arg-type]
        ([Wheel("1", Path("a"), {1: "x"})], list[Wheel], r"at `\$\[0\].sizes"),  # type: ignore[dict-item]
        (3, None, "not None"),
        (float("nan"), float, "Expected `float`, got `null`"),
        (object(), Any, "object has no JSON form"),
    ],
)
def test_what_does_not_follow_its_annotation_is_refused_with_the_path(value: Any, annotation: Any, said: str) -> None:
    with pytest.raises(OutputInvalid, match=said):
        to_data(value, annotation)


def test_a_recorded_value_of_another_form_is_refused() -> None:
    with pytest.raises(OutputInvalid, match="what was recorded is not Wheel"):
        from_data({"version": 1}, Wheel)


def test_a_type_without_json_form_is_refused() -> None:
    class Plain: ...

    with pytest.raises(DefinitionError, match="Plain has no JSON form"):
        schema(list[Plain])


def test_an_annotation_that_cannot_be_resolved_is_refused() -> None:
    def build(ctx: Ctx) -> Nowhere: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(DefinitionError, match="what build returns cannot be resolved"):
        return_type(build)
