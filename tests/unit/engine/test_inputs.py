from __future__ import annotations

from typing import Any

import pytest

from kici.engine.errors import InputError
from kici.engine.events import Event, EventType
from kici.engine.inputs import applied, coerce, problems, texts
from kici.engine.lock_triggers import Inputs, LockInput, ManualTrigger

WANTED: Inputs = {
    "target": LockInput("string", required=True, choices=("staging", "prod")),
    "count": LockInput("integer", default=1, ge=1, le=10),
    "share": LockInput("number", default=0.5, gt=0, lt=1),
    "dry": LockInput("boolean", default=False),
    "note": LockInput("string", nullable=True, max_length=5, pattern="^[a-z]*$"),
}


def test_texts_of_a_command_line_become_values_and_defaults_are_added() -> None:
    given = {"target": "prod", "count": " 3 ", "share": "0.25", "dry": "Yes", "note": "abc"}
    assert coerce(WANTED, given) == {"target": "prod", "count": 3, "share": 0.25, "dry": True, "note": "abc"}
    assert coerce(WANTED, {"target": "prod", "note": ""}) == {
        "target": "prod",
        "count": 1,
        "share": 0.5,
        "dry": False,
        "note": None,
    }


def test_json_values_become_the_same() -> None:
    given = {"target": "prod", "count": 3, "share": 0.25, "dry": True, "note": None}
    assert coerce(WANTED, given) == given
    assert coerce({"s": LockInput("string", required=True)}, {"s": 3}) == {"s": "3"}
    assert coerce({"i": LockInput("integer", required=True)}, {"i": 3.0}) == {"i": 3}


def test_what_goes_on_is_text_that_reads_as_the_same_values_again() -> None:
    values = coerce(WANTED, {"target": "prod", "dry": "on", "share": "0.1"})
    spelled = texts(values)
    assert spelled == {"target": "prod", "count": "1", "share": "0.1", "dry": "true", "note": ""}
    assert coerce(WANTED, spelled) == values


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "input 'target' is missing: it is one of staging, prod"),
        ({"target": "prd"}, "input 'target' is 'prd' .did you mean 'prod'"),
        ({"taget": "prod"}, "there is no input 'taget' .did you mean 'target'..; there are target, count"),
        ({"count": "three"}, "input 'count' is 'three'; it is a whole number"),
        ({"count": "1.5"}, "it is a whole number"),
        ({"count": 1.5}, "input 'count' is 1.5; it is a whole number"),
        ({"count": True}, "input 'count' is true; it is a whole number"),
        ({"count": "0"}, "input 'count' is 0; it is at least 1"),
        ({"count": 11}, "it is at most 10"),
        ({"count": "9" * 30}, "it is a whole number"),
        ({"share": "0"}, "it is more than 0"),
        ({"share": 1}, "it is less than 1"),
        ({"share": "nan"}, "it is a number"),
        ({"share": "inf"}, "it is a number"),
        ({"dry": "maybe"}, "input 'dry' is 'maybe'; it is true or false"),
        ({"dry": 1}, "input 'dry' is 1; it is true or false"),
        ({"dry": None}, "input 'dry' is null"),
        ({"note": "abcdef"}, "it has at most 5 characters"),
        ({"note": "A"}, "it matches /"),
        ({"note": ["a"]}, "it is text"),
        ({"note": "x" * 70_000}, "has 70,000 characters"),
    ],
)
def test_a_bad_input_is_refused_by_its_name(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        coerce(WANTED, given)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        coerce(WANTED, {"count": "x", "dry": "y", "other": "z"})
    assert str(caught.value).count(";") >= 3
    assert all(name in str(caught.value) for name in ("'other'", "'target'", "'count'", "'dry'"))


def test_a_trigger_without_a_class_takes_whatever_comes() -> None:
    event = Event(type=EventType.MANUAL, inputs={"a": "b"})
    assert applied(ManualTrigger(), event) is event
    assert applied(ManualTrigger({"a": LockInput("string"), "n": LockInput("integer", default=2)}), event).inputs == {
        "a": "b",
        "n": "2",
    }


def test_a_lock_file_with_inputs_that_cannot_be_is_told() -> None:
    found = list(
        problems(
            {
                "a": LockInput("object"),
                "b": LockInput("integer", default=0, ge=1),
                "c": LockInput("string", required=True, pattern="(?=x)"),
            }
        )
    )
    assert [one.split(":")[0].split(" has")[0] for one in found] == ["input 'a'", "input 'b'", "input 'c'"]
