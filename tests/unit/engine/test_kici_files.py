from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kici.engine.kici_files import compare, digest

trees = st.dictionaries(st.sampled_from(["a.py", "b.py", "c/d.py"]), st.sampled_from(["1", "2"]))


@given(st.text("ab\n", max_size=30))
def test_line_ends_do_not_change_the_digest_of_text(text: str) -> None:
    assert (
        digest(text.encode())
        == digest(text.replace("\n", "\r\n").encode())
        == digest(text.replace("\n", "\r").encode())
    )


def test_a_file_with_nul_bytes_is_taken_raw() -> None:
    assert digest(b"\0\r\n") != digest(b"\0\n")


def test_each_difference_is_one_sentence_with_the_way_out() -> None:
    problems = compare({"a.py": "1", "b.py": "1"}, {"b.py": "2", "c.py": "1"})
    assert [problem.split(":")[0] for problem in problems] == [
        ".kici/a.py is in the lock file but missing",
        ".kici/b.py differs from the lock file",
        ".kici/c.py is not in the lock file",
    ]
    assert all("kici compile" in problem for problem in problems)


@given(trees, trees)
def test_there_is_no_problem_exactly_when_the_trees_are_equal(listed: dict[str, str], actual: dict[str, str]) -> None:
    assert (compare(listed, actual) == []) == (listed == actual)
