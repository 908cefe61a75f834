from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcmatch import glob as wcglob

from kici.engine.errors import PatternError
from kici.engine.globs import MAX_LENGTH, compile_glob, is_glob

WCMATCH = wcglob.GLOBSTAR | wcglob.EXTGLOB | wcglob.BRACE | wcglob.FORCEUNIX | wcglob.CASE | wcglob.DOTGLOB

segments = st.one_of(
    st.text("ab-x", min_size=1, max_size=3),
    st.sampled_from(["*", "**", "?", "a*", "*b", "a?x", "[ab]", "[!a]", "{a,b}", "@(a|b)", "+(a)", "?(a)b", "*(ab)x"]),
)
patterns = st.lists(segments, min_size=1, max_size=4).map("/".join)
values = st.lists(st.text("abx-", min_size=1, max_size=3), min_size=1, max_size=5).map("/".join)


@pytest.mark.parametrize(
    ("pattern", "value", "matched"),
    [
        ("main", "main", True),
        ("main", "Main", False),
        ("main", "main2", False),
        ("*", "feature/x", False),
        ("feature/*", "feature/x", True),
        ("feature/*", "feature/x/y", False),
        ("feature/**", "feature/x/y", True),
        ("**", "a/b/c", True),
        ("src/**", "src/.hidden/a.py", True),
        ("src/**", "srcx/a.py", False),
        ("**/*.md", "README.md", True),
        ("**/*.md", "docs/a/b.md", True),
        ("*.py", ".x.py", True),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("{main,dev}", "dev", True),
        ("release-[0-9].?", "release-3.1", True),
        ("!(main)", "dev", True),
        ("!(main)", "main", False),
        ("@(a/b|c)", "a/b", True),
        ("a\\*", "a*", True),
        ("a\\*", "ab", False),
    ],
)
def test_globs_match_as_documented(pattern: str, value: str, matched: bool) -> None:
    assert compile_glob(pattern)(value) is matched


@given(patterns, values)
def test_a_glob_means_what_wcmatch_says(pattern: str, value: str) -> None:
    assert compile_glob(pattern)(value) == wcglob.globmatch(value, pattern, flags=WCMATCH)


def test_a_hostile_glob_costs_no_time() -> None:
    """A backtracking engine needs years for this one; the deadline is the test's own."""
    matcher = compile_glob("*a" * 100 + "b")
    started = time.process_time()
    assert not matcher("a" * 4_000)
    assert time.process_time() - started < 30


@pytest.mark.parametrize("pattern", ["", "[a", "@(a", "!(a)*b*c*d*e", "{1..9}{1..9}{1..9}", "x" * (MAX_LENGTH + 1)])
def test_what_is_no_glob_is_refused_with_its_text(pattern: str) -> None:
    with pytest.raises(PatternError, match="glob"):
        compile_glob(pattern)


def test_a_glob_is_told_from_plain_text() -> None:
    assert not is_glob("kici:os:linux")
    assert all(is_glob(text) for text in ("web-*", "a?", "[ab]", "{a,b}", "@(a)"))
