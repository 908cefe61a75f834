"""Which commit changed files are compared with."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.engine import changed
from kici.engine.changed import Answer, Ask, Changed, Compare, Deciding, Here, Known, MergeBase, Trouble
from kici.engine.events import Event, EventType
from kici.engine.lockfile import LockRule, PrTrigger, PushTrigger, TagTrigger
from tests.support.locks import job, workflow

HEAD, BEFORE, GREEN, TIP, PARTED = ("a" * 40, "b" * 40, "c" * 40, "d" * 40, "e" * 40)


def settle(deciding: Deciding, answers: Mapping[Ask, Answer]) -> tuple[Changed, list[Ask]]:
    """What is decided by these answers; what they do not say is gone."""
    asked: list[Ask] = []
    answer: Answer = None
    try:
        while True:
            ask = deciding.send(answer)
            asked.append(ask)
            answer = answers.get(ask, None if isinstance(ask, MergeBase) else Trouble.GONE)
    except StopIteration as done:
        return done.value, asked


def push(branch: str = "main", before: str = BEFORE) -> Event:
    return Event(EventType.PUSH, branch=branch, before=before, sha=HEAD)


def test_unknown_is_never_an_empty_list() -> None:
    for event, known in (
        (push(), Known()),
        (push("dev"), Known()),
        (push(), Known(last_success=GREEN)),
        (Event(EventType.PULL_REQUEST, base_branch="main", before=BEFORE, sha=HEAD), Known(base_tip=TIP)),
        (Event(EventType.TAG, tag="v1", sha=HEAD), Known()),
    ):
        decided, _ = settle(changed.of_event(event, known), {})
        assert decided.files is None
        assert decided.since


def test_a_branch_is_compared_with_its_last_success_and_not_with_the_push() -> None:
    decided, asked = settle(
        changed.of_event(push(), Known(last_success=GREEN, has_run=True)), {Compare(GREEN, HEAD): ("a.py",)}
    )
    assert decided == Changed(("a.py",), GREEN, "the last successful run on main")
    assert asked == [Compare(GREEN, HEAD)]


def test_after_failures_alone_nothing_is_known_to_be_checked() -> None:
    decided, asked = settle(changed.of_event(push(), Known(has_run=True)), {})
    assert (decided.files, asked) == (None, [])
    assert decided.since == "no run on main has succeeded yet"


def test_the_first_run_on_the_default_branch_is_about_what_the_push_brought_also_after_force() -> None:
    answers: dict[Ask, Answer] = {MergeBase(BEFORE, HEAD): PARTED, Compare(PARTED, HEAD): ("b.py",)}
    decided, _ = settle(changed.of_event(push(), Known()), answers)
    assert (decided.files, decided.base) == (("b.py",), PARTED)


def test_a_new_default_branch_has_nothing_to_compare_with() -> None:
    decided, _ = settle(changed.of_event(push(before=""), Known()), {})
    assert decided == Changed(None, "", "main is new")


def test_another_branch_is_compared_with_where_it_left_the_default_branch_also_after_failures() -> None:
    answers: dict[Ask, Answer] = {MergeBase(TIP, HEAD): PARTED, Compare(PARTED, HEAD): ("c.py",)}
    for has_run in (False, True):
        decided, _ = settle(changed.of_event(push("dev"), Known(default_tip=TIP, has_run=has_run)), answers)
        assert decided == Changed(("c.py",), PARTED, "where dev left main")


def test_a_success_whose_commit_is_gone_is_passed_over_and_said() -> None:
    answers: dict[Ask, Answer] = {MergeBase(TIP, HEAD): PARTED, Compare(PARTED, HEAD): ("c.py",)}
    decided, _ = settle(changed.of_event(push("dev"), Known(last_success=GREEN, default_tip=TIP)), answers)
    assert decided.base == PARTED
    decided, _ = settle(changed.of_event(push("dev"), Known(last_success=GREEN)), {})
    assert "ccccccc" in decided.since
    assert "not in the repository any more" in decided.since


def test_too_many_files_are_unknown_and_no_other_base_is_tried() -> None:
    known = Known(last_success=GREEN, default_tip=TIP)
    decided, asked = settle(changed.of_event(push("dev"), known), {Compare(GREEN, HEAD): Trouble.TOO_MANY})
    assert (decided.files, decided.base, len(asked)) == (None, GREEN, 1)
    assert "10,000" in decided.since


def test_a_pull_request_is_compared_with_where_it_left_its_base_as_that_is_now() -> None:
    event = Event(EventType.PULL_REQUEST, base_branch="main", branch="dev", before=BEFORE, sha=HEAD)
    answers: dict[Ask, Answer] = {
        MergeBase(TIP, HEAD): PARTED,
        Compare(PARTED, HEAD): ("new.py",),
        MergeBase(BEFORE, HEAD): GREEN,
        Compare(GREEN, HEAD): ("new.py", "of-main.py"),
    }
    assert settle(changed.of_event(event, Known(base_tip=TIP)), answers)[0].files == ("new.py",)
    # The base branch was deleted; or has taken the pull request in already, so that it left it nowhere.
    assert settle(changed.of_event(event, Known()), answers)[0].base == GREEN
    merged = answers | {MergeBase(TIP, HEAD): HEAD, Compare(HEAD, HEAD): ()}
    assert settle(changed.of_event(event, Known(base_tip=TIP)), merged)[0].base == GREEN


def test_a_checkout_counts_what_is_not_committed_and_falls_back_to_its_last_commit() -> None:
    here = Here(HEAD, parent=BEFORE, tip=TIP, tip_name="origin/main")
    dirty: dict[Ask, Answer] = {MergeBase(TIP, HEAD): HEAD, Compare(HEAD, ""): ("wip.py",)}
    assert settle(changed.of_working_tree(here), dirty)[0].files == ("wip.py",)
    clean: dict[Ask, Answer] = {
        MergeBase(TIP, HEAD): HEAD,
        Compare(HEAD, ""): (),
        Compare(BEFORE, ""): ("last.py",),
    }
    assert settle(changed.of_working_tree(here), clean)[0] == Changed(("last.py",), BEFORE, "the commit before")
    demanded = Here(HEAD, parent=BEFORE, tip=TIP, tip_name="main", demanded=True)
    assert settle(changed.of_working_tree(demanded), clean)[0].files == ()


@pytest.mark.parametrize(
    ("asks", "made"),
    [
        (False, workflow()),
        (True, workflow(on=[PushTrigger(paths=("src/**",))])),
        (True, workflow(on=[TagTrigger(), PrTrigger(paths=("src/**",))])),
        (True, workflow(rules=(LockRule("src", changed=("src/**",)),))),
        (True, workflow(jobs=[job("a", rules=(LockRule("src", changed=("src/**",)),))])),
        (False, workflow(jobs=[job("a", rules=(LockRule("a function"),))])),
    ],
)
def test_git_is_asked_only_for_workflows_that_want_to_know(asks: bool, made: object) -> None:
    assert changed.wanted(made, push()) is asks  # type: ignore[arg-type]
    assert not changed.wanted(made, Event(EventType.TAG, tag="v1"))  # type: ignore[arg-type]


@given(
    pull=st.booleans(),
    branch=st.sampled_from(["main", "dev"]),
    known=st.builds(
        Known,
        last_success=st.sampled_from(["", GREEN]),
        has_run=st.booleans(),
        default_tip=st.sampled_from(["", TIP]),
        base_tip=st.sampled_from(["", TIP]),
    ),
    before=st.sampled_from(["", BEFORE]),
    merge_base=st.sampled_from([None, PARTED, HEAD]),
    compared=st.sampled_from([(), ("a",), Trouble.GONE, Trouble.TOO_MANY]),
)
def test_whatever_git_answers_there_is_a_decision_with_its_reason(
    pull: bool, branch: str, known: Known, before: str, merge_base: str | None, compared: Answer
) -> None:
    kind = EventType.PULL_REQUEST if pull else EventType.PUSH
    deciding = changed.of_event(Event(kind, branch=branch, base_branch="main", before=before, sha=HEAD), known)
    answer: Answer = None
    for _ in range(7):
        try:
            ask = deciding.send(answer)
        except StopIteration as done:
            decided = done.value
            break
        answer = merge_base if isinstance(ask, MergeBase) else compared
    assert decided.since
    assert (decided.files is None) or decided.base
    told = changed.told(changed.with_changed(push(), decided))
    assert ("not known" in told) is (decided.files is None)
