from __future__ import annotations

import pytest

from kici.engine.events import Event, EventType
from kici.engine.lockfile import (
    DispatchTrigger,
    GenericWebhookTrigger,
    LockWorkflow,
    ManualTrigger,
    PrTrigger,
    PushTrigger,
    SourceLocation,
    TagTrigger,
    Trigger,
)
from kici.engine.triggers import match, skip_requested


def workflow(*triggers: Trigger, name: str = "ci") -> LockWorkflow:
    return LockWorkflow(name, SourceLocation(".kici/workflows/ci.py"), "ci", "hash", triggers, ())


def push(branch: str = "main", changed: tuple[str, ...] | None = ()) -> Event:
    return Event(type=EventType.PUSH, branch=branch, changed_files=changed)


def test_a_workflow_without_triggers_never_starts() -> None:
    assert match(workflow(), push()).summary == "No triggers defined"


def test_the_first_trigger_that_takes_the_event_decides() -> None:
    decision = match(workflow(TagTrigger(), PushTrigger(("dev",)), PushTrigger(("ma*",))), push())
    assert (decision.matched, decision.trigger, decision.summary) == (True, 2, "Matched trigger 3 (push)")


def test_no_match_shows_the_check_that_failed_of_each_trigger() -> None:
    decision = match(workflow(PushTrigger(("dev", "!main")), TagTrigger()), push())
    assert not decision.matched
    failed = [(check.check, check.pattern, check.value) for check in decision.checks if not check.passed]
    assert failed == [("branch", "dev, !main", "main"), ("event type", "tag", "push")]


def test_a_tag_trigger_does_not_take_branch_pushes() -> None:
    assert not match(workflow(TagTrigger(("v*",))), push("v1")).matched
    assert match(workflow(TagTrigger(("v*",))), Event(type=EventType.TAG, tag="v1")).matched


@pytest.mark.parametrize(
    ("changed", "matched"),
    [((), False), (("src/a.py",), True), (("src/a.md",), False), (("src/.env/x",), True), (("docs/a",), False)],
)
def test_path_filters_look_at_the_changed_files(changed: tuple[str, ...], matched: bool) -> None:
    assert match(workflow(PushTrigger(paths=("src/**", "!**/*.md"))), push(changed=changed)).matched is matched


def test_unknown_changed_files_match_with_a_warning() -> None:
    decision = match(workflow(PushTrigger(paths=("src/**",))), push(changed=None))
    assert decision.matched
    assert "not known which files changed" in decision.warnings[0]


def test_a_pull_request_is_matched_by_action_target_source_and_paths() -> None:
    event = Event(
        type=EventType.PULL_REQUEST, action="opened", branch="fix/x", base_branch="main", changed_files=("src/a.py",)
    )
    assert match(workflow(PrTrigger(target=("main",), source=("fix/*",), paths=("src/**",))), event).matched
    assert not match(workflow(PrTrigger(events=("closed",))), event).matched
    assert not match(workflow(PrTrigger(target=("release",))), event).matched


def test_dispatch_generic_webhook_and_manual_match_by_their_names() -> None:
    hook = Event(type=EventType.GENERIC_WEBHOOK, source="jira", event_name="issue")
    assert match(workflow(GenericWebhookTrigger("jira", ("issue",))), hook).matched
    assert not match(workflow(GenericWebhookTrigger("other")), hook).matched
    assert match(workflow(DispatchTrigger(("go",))), Event(type=EventType.DISPATCH, event_name="go")).matched
    assert match(workflow(ManualTrigger()), Event(type=EventType.MANUAL, workflow="ci")).matched
    assert not match(workflow(ManualTrigger()), Event(type=EventType.MANUAL, workflow="release")).matched


def test_a_deleted_branch_starts_nothing() -> None:
    event = Event(type=EventType.PUSH, branch="main", deleted=True)
    assert "deleted" in match(workflow(PushTrigger()), event).summary


@pytest.mark.parametrize("message", ["docs [skip ci]", "[CI SKIP] x", "a\n\n[no ci]"])
def test_a_message_can_ask_for_no_run(message: str) -> None:
    assert skip_requested(message)
    assert skip_requested("skip ci") is None
