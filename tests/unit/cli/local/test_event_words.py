"""Every event can be said in a word, and one made for a trigger is taken by it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kici.cli.local.event import Asked, Repository, event
from kici.cli.local.event_words import KINDS, kind_of
from kici.engine import lock_triggers as lock
from kici.engine import triggers
from kici.engine.events import Event, EventType
from kici.engine.lock_triggers import Regex, Trigger
from kici.engine.lockfile import LockWorkflow, SourceLocation
from kici.errors import KiciError

HERE = Repository(branch="feature", sha="a" * 40, name="local/app")
FILTERED: list[Trigger] = [
    lock.PrTrigger(("labeled",), ("release/*",)),
    lock.TagTrigger(("v*.*",)),
    lock.CommentTrigger(("edited",), ("pr",), ("/deploy *",)),
    lock.CommentTrigger(body_match=(Regex("^/go$"),)),
    lock.ReviewTrigger(("dismissed",), ("approved",)),
    lock.ReviewCommentTrigger(("deleted",)),
    lock.ReleaseTrigger(("prereleased",)),
    lock.DispatchTrigger(("go",)),
    lock.CreateTrigger(("tag",), ("v*",)),
    lock.DeleteTrigger(("branch",), ("old/*",)),
    lock.StatusTrigger(("ci/**",), ("pending",)),
    lock.WorkflowRunTrigger(("requested",), ("CI",), ("failure",)),
    lock.ForkTrigger(),
    lock.StarTrigger(("deleted",)),
    lock.WatchTrigger(("started",)),
    lock.WebhookTrigger(("deployment",), ("created",)),
    lock.KiciEventTrigger("Built", {"$.a[1].b": (3, 4), '$["c d"]': Regex("^v\\d")}, {"$.no": 1}, ("o/r",)),
    lock.WorkflowCompleteTrigger(("CI",), ("failed",), ("o/r",)),
    lock.WorkflowCompleteTrigger(),
    lock.JobCompleteTrigger(("CI",), ("unit",), ("skipped",)),
    lock.GenericWebhookTrigger("Jira", ("issue",), {"$.issue.state": "open"}),
    lock.ScheduleTrigger("0 6 * * MON", "Europe/Berlin"),
    lock.LifecycleTrigger(("job_failed",), ("o/r",)),
    lock.LifecycleTrigger(("workflow_complete",)),
    lock.ManualTrigger(),
]


def workflow(*found: Trigger) -> LockWorkflow:
    return LockWorkflow("ci", SourceLocation("ci.py"), "ci", "", found, ())


@pytest.mark.parametrize("trigger", FILTERED, ids=lambda one: type(one).__name__)
def test_an_event_made_for_a_trigger_is_taken_by_it(trigger: Trigger) -> None:
    ci = workflow(lock.PushTrigger(("other",)), trigger)
    found = event(Asked(kind_of(trigger)), HERE, ci)
    decision = triggers.match(ci, found)
    if isinstance(trigger, lock.KiciEventTrigger):  # what a regular expression wants is not guessed
        assert [check.check for check in decision.checks if not check.passed][-1] == 'payload $["c d"]'
    else:
        assert (decision.matched, decision.trigger) == (True, 1), decision.checks


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_word_and_its_event_survives_a_file(kind: str, tmp_path: Path) -> None:
    found = event(Asked(kind), HERE, None)
    assert found.type in EventType
    file = tmp_path / "event.json"
    file.write_bytes(msgspec.json.encode(found))
    assert event(Asked(str(file)), HERE, None) == found


@pytest.mark.parametrize(
    ("word", "field", "value"),
    [
        ("pr:closed", "action", "closed"),
        ("pr:sync", "action", "synchronize"),
        ("pr:labeled", "action", "labeled"),
        ("comment:deleted", "action", "deleted"),
        ("release:published", "action", "published"),
        ("create:tag", "ref_type", "tag"),
        ("kici_event:Built", "event_name", "Built"),
        ("workflow_complete:failed", "state", "failed"),
        ("generic_webhook:Jira", "source", "Jira"),
        ("schedule:0 6 * * *", "event_name", "0 6 * * *"),
        ("lifecycle:job_failed", "state", "failed"),
        ("webhook:deployment", "forge_event", "deployment"),
    ],
)
def test_what_stands_after_the_colon_says_more_and_keeps_its_case(word: str, field: str, value: str) -> None:
    assert getattr(event(Asked(word), HERE, None), field) == value


def test_a_word_that_means_nothing_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(KiciError, match=r"there is no event 'comments' .did you mean 'comment'"):
        event(Asked("comments"), HERE, None)
    with pytest.raises(KiciError, match="`kici fixture EVENT` makes one"):
        event(Asked("nowhere.json"), HERE, None)
    (tmp_path / "bad.json").write_text('{"type": "pushed"}')
    with pytest.raises(KiciError, match="is no event"):
        event(Asked(str(tmp_path / "bad.json")), HERE, None)
    (tmp_path / "bad.json").write_text('{"type": "push", "brunch": "main"}')
    with pytest.raises(KiciError, match="did you mean 'branch'"):
        event(Asked(str(tmp_path / "bad.json")), HERE, None)


def test_a_file_takes_its_commit_from_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".kici/events").mkdir(parents=True)
    (tmp_path / ".kici/events/closed.json").write_text('{"type": "pull_request", "action": "closed", "prNumber": 3}')
    monkeypatch.chdir(tmp_path)
    found = event(Asked("closed.json", inputs={"a": "b"}), HERE, None)
    assert found == Event(
        EventType.PULL_REQUEST,
        action="closed",
        pr_number=3,
        sha="a" * 40,
        repo="local/app",
        branch="feature",
        inputs={"a": "b"},
    )
