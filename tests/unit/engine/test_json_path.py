from __future__ import annotations

from typing import Any

import pytest

from kici.engine.errors import PathError
from kici.engine.json_path import ABSENT, find, meets, parse
from kici.engine.lock_triggers import Expected, Regex

PAYLOAD = {"issue": {"labels": [{"name": "bug"}, {"a b": None}]}, 'qu"ote': 1, "x.y": 2}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("$", PAYLOAD),
        ("$.issue.labels[0].name", "bug"),
        ('$["issue"]["labels"][0]["name"]', "bug"),
        ("$['x.y']", 2),
        ('$["qu\\"ote"]', 1),
        ('$.issue.labels[1]["a b"]', None),
        ("$.issue.labels[2]", ABSENT),
        ("$.issue.name", ABSENT),
        ("$.issue[0]", ABSENT),
        ("$.issue.labels.name", ABSENT),
        ("$.issue.labels[0].name[0]", ABSENT),
    ],
)
def test_a_path_leads_to_a_value_or_nowhere(path: str, value: Any) -> None:
    found = find(path, PAYLOAD)
    assert found is ABSENT if value is ABSENT else found == value


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a.b",
        "$a",
        "$.",
        "$..a",
        "$.a[*]",
        "$.*",
        "$.a[?(@.b)]",
        "$.a[-1]",
        "$.a[1:2]",
        "$[a]",
        '$["a',
        "$" + ".a" * 300,
    ],
)
def test_what_is_not_in_the_small_language_is_refused(path: str) -> None:
    with pytest.raises(PathError, match="path"):
        parse(path)


@pytest.mark.parametrize(
    ("expected", "value", "met"),
    [
        ("a", "a", True),
        ("1", 1, False),
        (1, "1", False),
        (1, 1.0, True),
        (1, True, False),
        (True, 1, False),
        (True, True, True),
        (False, None, False),
        (None, None, True),
        (None, "", False),
        (("a", 2), 2, True),
        (("a", 2), 3, False),
        (Regex("^v\\d"), "v1", True),
        (Regex("1"), 1, False),
        ("a", ["a"], False),
    ],
)
def test_values_are_compared_with_their_types(expected: Expected, value: Any, met: bool) -> None:
    assert meets(expected, value) is met
