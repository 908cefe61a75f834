from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.engine.errors import MatrixError
from kici.engine.matrix import expand

dimensions = st.dictionaries(
    st.sampled_from(["os", "python", "db"]),
    st.lists(st.text("abc", min_size=1, max_size=2), min_size=1, max_size=3, unique=True),
    min_size=1,
)


def suffixes(*args: object) -> list[str]:
    return [combination.suffix for combination in expand(*args)]  # type: ignore[arg-type]


def test_dimensions_go_by_name_and_the_last_one_is_fastest() -> None:
    assert suffixes({"python": ["3.11", "3.13"], "os": ["linux", "mac"]}) == [
        "linux, 3.11",
        "linux, 3.13",
        "mac, 3.11",
        "mac, 3.13",
    ]


def test_exclude_comes_first_and_include_adds_what_is_not_there() -> None:
    matrix = {"os": ["linux", "mac"], "python": ["3.11", "3.13"]}
    include = [{"os": "linux", "python": "3.13"}, {"os": "bsd", "python": "3.13"}]
    assert suffixes(matrix, include, [{"os": "mac"}, {}]) == ["linux, 3.11", "linux, 3.13", "bsd, 3.13"]


def test_the_limit_counts_what_is_left_after_exclusion() -> None:
    many = [str(number) for number in range(20)]
    assert len(expand({"a": many, "b": many}, (), [{"a": str(n)} for n in range(10)])) == 200
    with pytest.raises(MatrixError, match="400 combinations; the limit is 256"):
        expand({"a": many, "b": many})


def test_a_matrix_without_combinations_is_refused() -> None:
    with pytest.raises(MatrixError, match="no combination"):
        expand({"a": ["x"]}, (), [{"a": "x"}])


def test_a_product_too_large_to_count_out_is_refused_at_once() -> None:
    many = [str(number) for number in range(1000)]
    with pytest.raises(MatrixError, match="before exclusions"):
        expand({"a": many, "b": many, "c": many})


@given(dimensions)
def test_every_combination_has_every_dimension_once(matrix: dict[str, list[str]]) -> None:
    combinations = expand(matrix)
    assert len({combination.suffix for combination in combinations}) <= len(combinations)
    assert all(list(combination.values) == sorted(matrix) for combination in combinations)
    assert all(combination.values[name] in matrix[name] for combination in combinations for name in matrix)
