"""Events that are kept in `.kici/events/`."""

from __future__ import annotations

from pathlib import Path

import pytest

from kici.errors import KiciError
from kici.testing import fixture


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".kici/events").mkdir(parents=True)
    (tmp_path / "sub").mkdir()
    return tmp_path


def write(root: Path, text: str) -> None:
    (root / ".kici/events/one.json").write_text(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "is no event"),
        ("[]", "no JSON object"),
        ("{}", "type"),
        ('{"type": "pusk"}', "pusk"),
        ('{"type": "push", "brunch": "main"}', "did you mean 'branch'"),
        ('{"type": "push", "branch": 3}', r"\$.branch"),
    ],
)
def test_what_is_no_event_is_refused_with_the_field(root: Path, text: str, message: str) -> None:
    write(root, text)
    with pytest.raises(KiciError, match=message):
        fixture("one", root=root)


def test_a_missing_one_is_answered_with_what_is_there(root: Path) -> None:
    write(root, "{}")
    with pytest.raises(KiciError, match="did you mean 'one'"):
        fixture("on", root=root)


def test_it_is_found_from_below_and_keeps_its_payload(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, '{"type": "push", "branch": "dev", "changedFiles": ["a.py"], "payload": {"x": [1]}}')
    monkeypatch.chdir(root / "sub")
    event = fixture("one")
    assert (event.branch, event.changed_files, event.payload) == ("dev", ("a.py",), {"x": [1]})
    assert len(event.sha) == 40


def test_what_it_leaves_empty_is_filled_in_as_what_it_leaves_out(root: Path) -> None:
    write(root, '{"type": "push", "branch": "dev", "sha": "", "repo": ""}')
    event = fixture("one", root=root)
    assert (len(event.sha), bool(event.repo), event.actor) == (40, True, "tester")
