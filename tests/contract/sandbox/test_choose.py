from __future__ import annotations

from pathlib import Path

import pytest

from kici.agent.sandbox import bubblewrap
from kici.agent.sandbox.choose import choose
from kici.agent.sandbox.contract import SandboxUnavailable


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, base: Path) -> None:
    """A bubblewrap that cannot make namespaces, as on hosts that forbid them."""
    program = base / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(bubblewrap, "find_bwrap", lambda: str(program))


async def test_auto_takes_bubblewrap_where_it_works() -> None:
    choice = choose("auto")
    assert (choice.sandbox.name, choice.why) == ("bubblewrap", "bubblewrap works here")


def test_auto_says_why_it_takes_none(broken: None) -> None:
    choice = choose("auto")
    assert choice.sandbox.name == "none"
    assert "No permissions to create new namespace" in choice.why


def test_true_refuses_to_go_on_without_it(broken: None) -> None:
    with pytest.raises(SandboxUnavailable, match=r"KICI_SANDBOX=true, but .*No permissions to create"):
        choose("true")


def test_a_missing_bubblewrap_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda *args, **kwargs: None)
    with pytest.raises(SandboxUnavailable, match="install"):
        choose("true")


def test_false_takes_none() -> None:
    assert choose("false").sandbox.name == "none"


def test_another_word_is_refused() -> None:
    with pytest.raises(SandboxUnavailable, match="write auto, true or false"):
        choose("yes")
