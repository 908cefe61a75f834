from __future__ import annotations

from pathlib import Path

import pytest

from kici.agent.facts import facts
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


@pytest.fixture
def unknown_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for which there is no seccomp filter."""
    monkeypatch.setattr("platform.machine", lambda: "riscv64")


@pytest.mark.parametrize("mode", ["auto", "true", "bubblewrap"])
async def test_bubblewrap_is_taken_where_it_works(mode: str) -> None:
    choice = choose(mode)
    assert (choice.sandbox.name, choice.why, choice.fallback) == ("bubblewrap", "bubblewrap works here", "")


def test_auto_says_why_it_takes_none(broken: None) -> None:
    choice = choose("auto")
    assert choice.sandbox.name == "none"
    assert "No permissions to create new namespace" in choice.why
    told = facts(choice)
    assert (told["sandbox"], told["sandbox_fallback"]) == ("none", choice.why)


@pytest.mark.parametrize("mode", ["true", "bubblewrap"])
def test_who_requires_it_is_refused_without_it(broken: None, mode: str) -> None:
    with pytest.raises(SandboxUnavailable, match=rf"KICI_SANDBOX={mode}, but .*No permissions to create"):
        choose(mode)


def test_auto_goes_on_without_the_filter_and_says_so(unknown_machine: None) -> None:
    choice = choose("auto")
    assert choice.sandbox.name == "bubblewrap"
    assert choice.fallback == "no seccomp filter: there is no seccomp filter for riscv64, only for x86_64, aarch64"
    assert facts(choice)["sandbox_fallback"] == choice.fallback


@pytest.mark.parametrize("mode", ["true", "bubblewrap"])
def test_who_requires_it_is_refused_without_the_filter(unknown_machine: None, mode: str) -> None:
    with pytest.raises(SandboxUnavailable, match=rf"KICI_SANDBOX={mode}, but there is no seccomp filter for riscv64"):
        choose(mode)


def test_image_builds_are_refused_where_they_do_not_work(broken: None) -> None:
    with pytest.raises(SandboxUnavailable, match=r"KICI_SANDBOX_PROFILE=image-build, but"):
        choose("auto", "image-build")


def test_image_builds_are_refused_without_the_filter(unknown_machine: None) -> None:
    with pytest.raises(SandboxUnavailable, match=r"KICI_SANDBOX_PROFILE=image-build, but there is no seccomp filter"):
        choose("auto", "image-build")


@pytest.mark.parametrize("mode", ["none", "false", "container"])
def test_image_builds_belong_to_bubblewrap(mode: str) -> None:
    with pytest.raises(SandboxUnavailable, match=f"needs KICI_SANDBOX=bubblewrap, but it is {mode}"):
        choose(mode, "image-build")


@pytest.mark.parametrize("mode", ["none", "container"])
def test_image_builds_for_those_who_ask_belong_to_bubblewrap_too(mode: str) -> None:
    with pytest.raises(SandboxUnavailable, match=f"KICI_SANDBOX_ALLOW=image-build needs .* but it is {mode}"):
        choose(mode, allow="image-build")


def test_image_builds_for_those_who_ask_are_refused_where_they_do_not_work(broken: None) -> None:
    with pytest.raises(SandboxUnavailable, match=r"KICI_SANDBOX_ALLOW=image-build, but"):
        choose("auto", allow="image-build")


def test_the_labels_of_an_agent_are_what_it_can_do(unknown_machine: None) -> None:
    assert choose("none").labels == ("kici:sandbox:none",)
    assert choose("auto").labels == ("kici:sandbox:bubblewrap",)


async def test_an_agent_may_offer_image_builds_to_all_jobs_or_to_those_that_ask() -> None:
    both = ("kici:sandbox:bubblewrap", "kici:sandbox:isolated")
    assert choose("true").labels == both
    for choice in (choose("true", "image-build"), choose("true", allow="image-build")):
        assert choice.labels == (*both, "kici:sandbox:image-build")
    assert choice.image_builds is not choice.sandbox


def test_a_missing_bubblewrap_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda *args, **kwargs: None)
    with pytest.raises(SandboxUnavailable, match="install"):
        choose("true")


@pytest.mark.parametrize("mode", ["false", "none"])
def test_none_is_taken_by_both_its_names(mode: str) -> None:
    choice = choose(mode)
    assert choice.sandbox.name == "none"
    assert f"KICI_SANDBOX={mode}" in choice.why
    assert choice.fallback == ""


def test_another_word_is_refused() -> None:
    with pytest.raises(SandboxUnavailable, match="write auto, true, false, bubblewrap, container, none"):
        choose("yes")
