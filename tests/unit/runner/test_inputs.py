from __future__ import annotations

import dataclasses
import enum
from typing import Annotated, Literal

import msgspec
import pytest

from kici.runner.inputs import typed_inputs
from kici.sdk.errors import DefinitionError, InputInvalid


class Size(enum.Enum):
    small = "s"
    large = "l"


@dataclasses.dataclass
class Inputs:
    target: Literal["prod", "staging"]
    size: Size = Size.small
    count: Annotated[int, msgspec.Meta(ge=1)] = 1
    note: str | None = None


class Everything(msgspec.Struct):
    dry: bool = False


def test_the_texts_of_an_event_become_the_class_with_its_enums_and_defaults() -> None:
    given = {"target": "prod", "size": "l", "count": "3", "note": ""}
    assert typed_inputs(Inputs, given) == Inputs("prod", Size.large, 3, None)
    assert typed_inputs(Inputs, {"target": "staging"}) == Inputs("staging")
    assert typed_inputs(Everything, {"dry": "true"}) == Everything(True)


def test_an_event_without_them_gives_the_defaults_and_says_what_has_none() -> None:
    assert typed_inputs(Everything, {"of": "another trigger"}) == Everything()
    with pytest.raises(InputInvalid, match="Inputs: input 'target' is missing: it is one of prod, staging"):
        typed_inputs(Inputs, {})
    with pytest.raises(InputInvalid, match="input 'count' is 0; it is at least 1"):
        typed_inputs(Inputs, {"target": "prod", "count": "0"})


def test_a_class_that_no_trigger_would_take_is_refused() -> None:
    with pytest.raises(DefinitionError, match="neither a dataclass nor"):
        typed_inputs(int, {})
