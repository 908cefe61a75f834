from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from kici.engine import lock_triggers as lock
from kici.engine.events import Event, EventType, Trust
from kici.engine.lock_triggers import Regex, Trigger
from kici.engine.lockfile import LockWorkflow, SourceLocation, decode
from kici.engine.plan import validate
from kici.engine.trigger_checks import EVENT_TYPES
from kici.engine.triggers import match, needs_registration
from tests.support.locks import lock as lock_of


def workflow(*triggers: Trigger, name: str = "ci") -> LockWorkflow:
    return LockWorkflow(name, SourceLocation(".kici/workflows/ci.py"), "ci", "hash", triggers, ())


COMMENT = Event(type=EventType.COMMENT, action="created", issue_number=3, body="/deploy feature/x\nplease")
REVIEW = Event(type=EventType.REVIEW, action="submitted", state="approved", pr_number=3)
CREATED = Event(type=EventType.CREATE, ref_type="tag", event_name="v1", tag="v1")
STATUS = Event(type=EventType.STATUS, event_name="ci/build", state="failure")
ACTIONS = Event(type=EventType.WORKFLOW_RUN, action="completed", event_name="CI", state="success")
EMITTED = Event(type=EventType.KICI_EVENT, event_name="built", source_repo="o/lib", repo="o/app", payload={"n": 3})
ENDED = Event(type=EventType.WORKFLOW_COMPLETE, workflow="build", state="failed", source_repo="o/r", repo="o/r")
JOB_ENDED = Event(
    type=EventType.JOB_COMPLETE, workflow="build", job="unit", state="failed", source_repo="o/r", repo="o/r"
)
CLOCK = Event(type=EventType.SCHEDULE, workflow="ci", event_name="0 6 * * *", tz="UTC")
HOOK = Event(type=EventType.GENERIC_WEBHOOK, source="jira", event_name="issue", payload={"issue": {"state": "open"}})
DELIVERY = Event(type=EventType.WEBHOOK, forge_event="deployment", action="created")


@pytest.mark.parametrize(
    ("trigger", "event", "failed"),
    [
        (lock.CommentTrigger(), COMMENT, ""),
        (lock.CommentTrigger(("created",), ("issue",), ("/deploy *",)), COMMENT, ""),
        (lock.CommentTrigger(("edited",)), COMMENT, "action"),
        (lock.CommentTrigger(source=("pr",)), COMMENT, "comment on"),
        (lock.CommentTrigger(body_match=("/rollback*",)), COMMENT, "comment"),
        (lock.ReviewTrigger(("submitted",), ("approved",)), REVIEW, ""),
        (lock.ReviewTrigger(states=("changes_requested",)), REVIEW, "state"),
        (lock.ReviewCommentTrigger(("created",)), Event(type=EventType.REVIEW_COMMENT, action="edited"), "action"),
        (lock.ReleaseTrigger(("published",)), Event(type=EventType.RELEASE, action="published"), ""),
        (lock.ReleaseTrigger(("published",)), Event(type=EventType.RELEASE, action="created"), "action"),
        (lock.CreateTrigger(("tag",), ("v*",)), CREATED, ""),
        (lock.CreateTrigger(("branch",)), CREATED, "ref type"),
        (lock.CreateTrigger(patterns=("!v*",)), CREATED, "ref"),
        (lock.DeleteTrigger(), CREATED, "event type"),
        (lock.StatusTrigger(("ci/*",), ("failure", "error")), STATUS, ""),
        (lock.StatusTrigger(("other",)), STATUS, "context"),
        (lock.StatusTrigger(states=("success",)), STATUS, "state"),
        (lock.WorkflowRunTrigger(("completed",), ("CI",), ("success",)), ACTIONS, ""),
        (lock.WorkflowRunTrigger(workflows=("CD",)), ACTIONS, "workflow"),
        (lock.WorkflowRunTrigger(conclusions=("failure",)), ACTIONS, "conclusion"),
        (lock.ForkTrigger(), Event(type=EventType.FORK), ""),
        (lock.StarTrigger(("deleted",)), Event(type=EventType.STAR, action="created"), "action"),
        (lock.WatchTrigger(("started",)), Event(type=EventType.WATCH, action="started"), ""),
        (lock.WebhookTrigger(("deployment",), ("created",)), DELIVERY, ""),
        (lock.WebhookTrigger(("issues",)), DELIVERY, "event"),
        (lock.KiciEventTrigger("built", {"$.n": (2, 3)}, {"$.gone": 1}, ("o/lib",)), EMITTED, ""),
        (lock.KiciEventTrigger("built", {"$.gone": 1}), EMITTED, "payload $.gone"),
        (lock.KiciEventTrigger("built", not_={"$.n": 3}), EMITTED, "payload $.n"),
        (lock.KiciEventTrigger("built", source=("o/other",)), EMITTED, "source repository"),
        (lock.KiciEventTrigger("Built"), EMITTED, "event name"),
        (lock.WorkflowCompleteTrigger(status=("failed",)), ENDED, ""),
        (lock.WorkflowCompleteTrigger(("build",), source=("o/r",)), ENDED, ""),
        (lock.WorkflowCompleteTrigger(("other",)), ENDED, "completed workflow"),
        (lock.WorkflowCompleteTrigger(status=("success",)), ENDED, "status"),
        (lock.JobCompleteTrigger(("build",), ("unit",), ("failed",)), JOB_ENDED, ""),
        (lock.JobCompleteTrigger(job=("lint",)), JOB_ENDED, "job"),
        (lock.LifecycleTrigger(("job_failed",)), JOB_ENDED, ""),
        (lock.LifecycleTrigger(("job_failed",)), ENDED, "event"),
        (lock.LifecycleTrigger(("workflow_complete",), ("o/r",)), ENDED, ""),
        (lock.LifecycleTrigger(("workflow_complete",), ("o/x",)), ENDED, "source repository"),
        (lock.LifecycleTrigger(("job_complete",)), COMMENT, "event type"),
        (lock.ScheduleTrigger("0 6 * * *"), CLOCK, ""),
        (lock.ScheduleTrigger("0 7 * * *"), CLOCK, "cron"),
        (lock.ScheduleTrigger("0 6 * * *", "Europe/Berlin"), CLOCK, "time zone"),
        (lock.GenericWebhookTrigger("jira", match={"$.issue.state": Regex("^op")}), HOOK, ""),
        (lock.GenericWebhookTrigger("jira", not_={"$.issue.state": ("open", "new")}), HOOK, "payload $.issue.state"),
        (lock.GenericWebhookTrigger("issue"), HOOK, "source"),
    ],
)
def test_the_first_check_that_fails_says_why(trigger: Trigger, event: Event, failed: str) -> None:
    decision = match(workflow(trigger), event)
    assert [check.check for check in decision.checks if not check.passed] == ([failed] if failed else [])
    assert decision.matched == (not failed)


def test_every_trigger_of_the_lock_file_has_its_event_type() -> None:
    structs = set(get_args(Trigger))
    assert structs - set(EVENT_TYPES) == {lock.LifecycleTrigger}
    assert set(EVENT_TYPES.values()) == set(EventType)


def test_a_workflow_is_not_started_again_by_its_own_end_unless_it_says_so() -> None:
    itself = "build"
    for trigger in (
        lock.WorkflowCompleteTrigger(),
        lock.JobCompleteTrigger(),
        lock.LifecycleTrigger(("workflow_complete", "job_complete")),
    ):
        event = JOB_ENDED if isinstance(trigger, lock.JobCompleteTrigger) else ENDED
        decision = match(workflow(trigger, name=itself), event)
        assert [check.pattern for check in decision.checks if not check.passed] == ["any but build"]
        elsewhere = msgspec.structs.replace(event, source_repo="o/other")
        assert match(workflow(trigger, name=itself), elsewhere).matched
    assert match(workflow(lock.WorkflowCompleteTrigger(("build",)), name=itself), ENDED).matched
    assert match(workflow(lock.JobCompleteTrigger(("build",)), name=itself), JOB_ENDED).matched


def test_each_schedule_of_a_workflow_has_its_own_timer() -> None:
    several = workflow(lock.ScheduleTrigger("0 6 * * *"), lock.ScheduleTrigger("0 18 * * *"))
    evening = msgspec.structs.replace(CLOCK, event_name="0 18 * * *")
    assert (match(several, CLOCK).trigger, match(several, evening).trigger) == (0, 1)
    assert not match(several, msgspec.structs.replace(CLOCK, workflow="another")).matched


@pytest.mark.parametrize(
    ("patterns", "body", "matched"),
    [
        (("/deploy",), "please\n/deploy it", True),
        (("/deploy *",), "/deploy feature/x now\nsecond line", True),
        (("/deploy *",), "\n  /deploy prod  \nmore", True),
        (("/deploy *",), "please\n/deploy prod", False),
        (("/deploy",), "deploy", False),
        (("/deploy *", "!dry"), "/deploy prod dry", False),
        (("!dry",), "anything", True),
        (("a.c",), "abc", False),
        (("c?sts [1]*",), "costs [1] euro", True),
        ((Regex("(?m)^/go$"),), "hm\n/go\n", True),
        ((), "", True),
    ],
)
def test_a_comment_is_matched_by_its_first_line_or_by_what_it_contains(
    patterns: tuple[str | Regex, ...], body: str, matched: bool
) -> None:
    event = Event(type=EventType.COMMENT, body=body)
    assert match(workflow(lock.CommentTrigger(body_match=patterns)), event).matched is matched


def test_what_needs_the_default_branch() -> None:
    types = {one for one in EVENT_TYPES if issubclass(one, lock.RegisteredTrigger)}
    assert {str(EVENT_TYPES[one]) for one in types} == {
        *("kici_event", "workflow_complete", "job_complete", "generic_webhook", "schedule", "webhook")
    }
    assert needs_registration(lock.LifecycleTrigger(("job_failed",)))
    assert not needs_registration(lock.CommentTrigger())


def test_what_is_said_on_a_pull_request_is_not_trusted_and_on_an_issue_it_is() -> None:
    for kind in (EventType.COMMENT, EventType.REVIEW, EventType.REVIEW_COMMENT):
        event = Event(type=kind, pr_number=7)
        assert (event.trust, event.ref) == (Trust.UNKNOWN, "refs/pull/7/head")
    assert Event(type=EventType.COMMENT, issue_number=7, branch="main").trust is Trust.TRUSTED


@pytest.mark.parametrize(
    ("trigger", "says"),
    [
        (lock.CommentTrigger(body_match=(Regex("(?=x)"),)), "look-around"),
        (lock.StatusTrigger(contexts=("a[",)), "without its"),
        (lock.KiciEventTrigger("a", {"$..x": 1}), "cannot be read"),
        (lock.KiciEventTrigger("a", {"$.x": (Regex("("),)}), "cannot be read"),
        (lock.ScheduleTrigger("0 0 30 2 *"), "never fires"),
        (lock.ScheduleTrigger("0 0 * * *", inputs={"a": lock.LockInput("string", required=True)}), "has no default"),
        (lock.ManualTrigger({"a": lock.LockInput("object")}), "has the type 'object'"),
    ],
)
def test_a_lock_file_whose_triggers_cannot_be_used_is_refused(trigger: Trigger, says: str) -> None:
    found = " ".join(validate(decode(lock_of(workflow(trigger)))))
    assert says in found


def test_two_equal_schedules_are_refused() -> None:
    twice = workflow(lock.ScheduleTrigger("0 6 * * *"), lock.ScheduleTrigger("0 6 * * *"))
    assert "two schedules are '0 6 * * *' in UTC" in " ".join(validate(decode(lock_of(twice))))
