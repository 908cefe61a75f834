from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.engine.errors import PatternError
from kici.engine.lockfile import Regex
from kici.engine.patterns import check, matches, paths_match

names = st.sampled_from(["main", "dev", "feature/x", "release-1"])
lists = st.lists(st.sampled_from(["main", "dev", "feature/*", "!dev", "!main", "**"]), max_size=4)


def test_an_exclamation_mark_excludes_in_every_list() -> None:
    assert matches(["main", "!dev"], "main")
    assert not matches(["main", "!dev"], "dev")
    assert not matches(["main", "!dev"], "other")


def test_a_list_of_exclusions_takes_the_rest() -> None:
    assert matches(["!dev"], "main")
    assert not matches(["!dev"], "dev")


def test_a_regex_is_searched_for_and_a_glob_matches_the_whole() -> None:
    assert matches([Regex("v\\d")], "release-v1-final")
    assert not matches(["v1"], "release-v1")


def test_paths_match_if_one_changed_file_does() -> None:
    patterns = ["src/**", "!**/*.md"]
    assert paths_match(patterns, ["docs/x", "src/a.py"])
    assert not paths_match(patterns, ["src/README.md", "docs/x"])
    assert not paths_match(patterns, [])
    assert paths_match([], [])


def test_look_around_is_refused_with_the_reason() -> None:
    with pytest.raises(PatternError, match="look-around"):
        check(Regex("(?=a)"))


@given(lists, names)
def test_the_order_of_a_list_does_not_matter(patterns: list[str], name: str) -> None:
    assert matches(patterns, name) == matches(patterns[::-1], name)


@given(lists, names)
def test_an_exclusion_never_adds_a_match(patterns: list[str], name: str) -> None:
    assert not (matches([*patterns, "!dev"], name) and name == "dev")
