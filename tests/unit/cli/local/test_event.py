from __future__ import annotations

import pytest

from kici.cli.local.event import Asked, Repository, event
from kici.engine import triggers
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

REPOSITORY = Repository(branch="feature", sha="a" * 40, before="b" * 40, name="local/app", actor="me", message="Do it")


def workflow(*found: Trigger) -> LockWorkflow:
    return LockWorkflow("ci", SourceLocation("ci.py"), "ci", "", found, ())


def test_without_a_workflow_it_is_a_push_to_the_current_branch() -> None:
    found = event(Asked(), REPOSITORY, None)
    assert (found.type, found.branch, found.sha, found.before) == ("push", "feature", "a" * 40, "b" * 40)
    assert found.changed_files is None


@pytest.mark.parametrize(
    "trigger",
    [
        PushTrigger(),
        TagTrigger(),
        PrTrigger(),
        DispatchTrigger(types=("deploy",)),
        GenericWebhookTrigger("billing", events=("paid",)),
        ManualTrigger(),
    ],
)
def test_a_named_workflow_gets_an_event_of_its_own_trigger(trigger: Trigger) -> None:
    ci = workflow(trigger)
    assert triggers.match(ci, event(Asked(), REPOSITORY, ci)).matched


def test_a_workflow_that_nothing_starts_gets_a_manual_start() -> None:
    found = event(Asked(), REPOSITORY, workflow())
    assert (found.type, found.workflow) == ("manual", "ci")


def test_what_was_asked_for_wins() -> None:
    found = event(Asked("pr", "topic", "release", ("a.py",), {"x": "1"}), REPOSITORY, workflow(PushTrigger()))
    assert (found.type, found.branch, found.base_branch) == ("pull_request", "topic", "release")
    assert (found.changed_files, found.inputs) == (("a.py",), {"x": "1"})


def test_only_a_described_event_decides_about_a_named_workflow() -> None:
    assert not Asked(inputs={"a": "1"}, target="x").names_event
    assert Asked("push").names_event
    assert Asked(ref="main").names_event
