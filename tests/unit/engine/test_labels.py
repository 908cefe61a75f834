from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kici.engine import labels
from kici.engine.lockfile import LockJob, LockSandbox, Regex

names = st.sampled_from(["linux", "gpu", "web-1", "web-2", "kici:os:linux", "big"])


def test_short_names_are_spelled_out() -> None:
    assert labels.requirement(["linux", "gpu"]).labels == ("gpu", "kici:os:linux")


def test_patterns_ask_for_some_label_and_exclusions_for_none() -> None:
    wanted = labels.requirement(["web-*"], [Regex("^canary")])
    assert labels.satisfies(wanted, {"web-3"})
    assert labels.missing(wanted, {"web-3", "canary-1"}) == ("not /^canary/",)
    assert labels.missing(wanted, {"db"}) == ("web-*",)


def test_automatic_labels_have_the_usual_names() -> None:
    assert labels.automatic("Linux", "x86_64", "h1") == (
        "kici:os:linux",
        "kici:arch:x64",
        "kici:arch:amd64",
        "kici:host:h1",
    )


def test_a_sandbox_is_one_label_more() -> None:
    job = LockJob("a", (), ("linux", "web-*"), ("slow",), sandbox=LockSandbox.ISOLATED)
    wanted = labels.of_job(job)
    assert wanted == labels.requirement(["linux", "web-*", "kici:sandbox:isolated"], ["slow"])
    assert labels.missing(wanted, {"kici:os:linux", "web-1"}) == ("kici:sandbox:isolated",)
    assert labels.of_job(LockJob("a", (), ("linux",))) == labels.requirement(["linux"])


def test_an_agent_says_how_it_keeps_its_jobs() -> None:
    def offered(name: str, *, filtered: bool = True, image_builds: bool = False) -> list[str]:
        found = labels.of_sandbox(name, filtered=filtered, image_builds=image_builds)
        return [label.removeprefix("kici:sandbox:") for label in found]

    assert offered("none") == ["none"]
    assert offered("container") == ["container", "isolated"]
    assert offered("bubblewrap") == ["bubblewrap", "isolated"]
    assert offered("bubblewrap", filtered=False) == ["bubblewrap"]
    assert offered("bubblewrap", image_builds=True) == ["bubblewrap", "isolated", "image-build"]
    assert labels.foreign(labels.of_sandbox("none", filtered=False, image_builds=False), []) == ()


def test_labels_beyond_a_tokens_are_foreign_and_automatic_ones_are_not() -> None:
    assert labels.foreign(["gpu", "kici:host:h1", "prod"], ["gpu"]) == ("prod",)
    assert labels.foreign(["anything"], None) == ()
    assert labels.foreign(["kici:scaler:x"], []) == ("kici:scaler:x",)


def test_a_label_of_ours_comes_only_with_a_token_that_names_it() -> None:
    assert labels.foreign(["gpu", "kici:scaler:x"], None) == ("kici:scaler:x",)
    assert labels.foreign(["kici:scaler:x"], ["kici:scaler:x"]) == ()


@given(st.lists(names), st.lists(names), st.sets(names))
def test_the_key_depends_only_on_what_is_wanted(runs_on: list[str], exclude: list[str], offered: set[str]) -> None:
    one = labels.requirement(runs_on, exclude)
    other = labels.requirement(runs_on[::-1] * 2, exclude[::-1])
    assert labels.key(one) == labels.key(other)
    assert labels.satisfies(one, offered) == labels.satisfies(other, offered)
    assert (labels.key(labels.requirement([*runs_on, "more"])) == labels.key(one)) is False


@given(st.lists(names, min_size=1), st.sets(names))
def test_more_labels_never_hurt_without_exclusions(runs_on: list[str], offered: set[str]) -> None:
    wanted = labels.requirement(runs_on)
    assert not labels.satisfies(wanted, offered) or labels.satisfies(wanted, offered | {"other"})
