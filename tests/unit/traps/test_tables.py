"""The check of `make traps` notices what is wrong with a table."""

from __future__ import annotations

from typing import Any

import pytest

from tests.traps.__main__ import problems

COLLECTED = frozenset({"tests/a.py::test_x"})
SHOWN = {"trap": "x", "tests": ["tests/a.py::test_x"]}
IDLE = {"trap": "y", "does_not_apply": "because"}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"1": SHOWN}, ["trap 2 is missing"]),
        ({"1": SHOWN, "2": IDLE, "3": IDLE}, ["there is no trap 3"]),
        ({"1": {"tests": ["tests/a.py::test_x"]}, "2": IDLE}, ["trap 1 does not say what it is"]),
        ({"1": {"trap": "x"}, "2": IDLE}, ["trap 1 (x) needs either tests or a reason why it does not apply"]),
        ({"1": SHOWN | IDLE, "2": IDLE}, ["trap 1 (y) needs either tests or a reason why it does not apply"]),
        ({"1": {"trap": "x", "tests": ["tests/a.py::y"]}, "2": IDLE}, ["trap 1: pytest collects no tests/a.py::y"]),
        ({"1": SHOWN, "2": IDLE}, []),
    ],
)
def test_each_fault_is_a_sentence(rows: dict[str, Any], said: list[str]) -> None:
    assert list(problems({"count": 2, "traps": rows}, COLLECTED)) == said
