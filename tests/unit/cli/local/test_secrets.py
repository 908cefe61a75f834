from __future__ import annotations

import pytest

from kici.cli.local.secrets import SecretsInvalid, parse


def test_sections_are_for_jobs_of_their_environment() -> None:
    found = parse("# all\nA = 1\nB='two words'\n\n[production]\nA=live\nC=x=y # not a comment\n")
    assert found.of("") == {"A": "1", "B": "two words"}
    assert found.of("production") == {"A": "live", "B": "two words", "C": "x=y # not a comment"}
    assert found.of("staging") == found.of("")
    assert sorted(found.values) == ["1", "live", "two words", "x=y # not a comment"]


def test_what_is_wrong_is_told_by_its_line_and_not_by_its_text() -> None:
    with pytest.raises(SecretsInvalid, match=r"line 2: write NAME=value") as raised:
        parse("A=1\nhunter2\n")
    assert "hunter2" not in str(raised.value)


def test_values_do_not_stand_in_its_repr() -> None:
    assert "hunter2" not in repr(parse("A=hunter2\n"))
