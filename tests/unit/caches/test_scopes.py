"""Which entries of caches a run finds and makes: the law is that nothing flows to the default branch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.engine.events import Event, EventType
from kici.orchestrator.caches import scopes
from kici.orchestrator.store.caches import DEFAULT_BRANCH, UNTRUSTED

PUSH, PULL = EventType.PUSH, EventType.PULL_REQUEST


@pytest.mark.parametrize(
    ("event", "readable"),
    [
        (Event(PUSH, branch="main"), [""]),
        (Event(PUSH, branch="trunk", default_branch="trunk"), [""]),
        (Event(PUSH, branch="main", default_branch="trunk"), ["heads/main", ""]),
        (Event(PUSH, branch="feature/x"), ["heads/feature/x", ""]),
        (Event(PUSH, branch="pr-7"), ["heads/pr-7", ""]),
        (Event(PUSH, tag="v1"), ["tags/v1", ""]),
        (Event(EventType.SCHEDULE), [""]),
        (Event(PULL, branch="main", base_branch="main", pr_number=7, is_fork=True), ["pr-7", ""]),
        (Event(PULL, branch="main", base_branch="v2", pr_number=7), ["pr-7", "heads/v2", ""]),
        (Event(EventType.COMMENT, branch="main", base_branch="main", pr_number=7), ["pr-7", ""]),
    ],
)
def test_a_run_finds_its_own_then_its_base_branchs_then_the_default_branchs(event: Event, readable: list[str]) -> None:
    assert scopes.readable(event) == readable
    assert scopes.written(event) == readable[0]


_NAMES = st.text(min_size=1, max_size=400)


@given(
    st.builds(
        Event,
        st.sampled_from(list(EventType)),
        branch=_NAMES | st.just(""),
        tag=_NAMES | st.just(""),
        base_branch=_NAMES | st.just(""),
        default_branch=_NAMES,
        pr_number=st.integers(0, 10**9),
    )
)
def test_only_the_default_branch_writes_what_all_find(event: Event) -> None:
    written, readable = scopes.written(event), scopes.readable(event)
    if written == DEFAULT_BRANCH:
        assert not event.of_pull_request
        assert not event.tag
        assert event.branch in ("", event.default_branch)
    assert written.startswith(UNTRUSTED) == (event.trust != "trusted")
    assert readable[-1] == DEFAULT_BRANCH
    assert written != DEFAULT_BRANCH or readable == [DEFAULT_BRANCH]
    assert all(len(scope) <= scopes.MAX_CHARS for scope in readable)


@given(_NAMES, _NAMES)
def test_two_branches_share_nothing_however_long_their_names_are(one: str, other: str) -> None:
    first, second = (scopes.written(Event(PUSH, branch=name, default_branch="")) for name in (one, "x" * 300 + other))
    assert (first == second) == (one == "x" * 300 + other)
    assert second == scopes.written(Event(PUSH, branch="x" * 300 + other, default_branch=""))
    assert second != scopes.written(Event(PUSH, branch="x" * 300 + other + "y", default_branch=""))


def test_no_branch_can_take_the_scope_of_one_with_a_long_name() -> None:
    scope = scopes.written(Event(PUSH, branch="x" * 300))
    assert scopes.written(Event(PUSH, branch=scope.removeprefix("heads/"))) != scope
