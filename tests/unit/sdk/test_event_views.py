from __future__ import annotations

from typing import get_args

import pytest
from msgspec import structs

import kici
from kici.engine.events import Event, EventType
from kici.sdk import event_views
from kici.sdk.errors import OtherEvent
from kici.sdk.event_views import EventView, view

VIEWS = EventView.__subclasses__()


def test_the_kinds_are_those_of_the_engine() -> None:
    assert set(get_args(event_views.EventKind)) == {str(one) for one in EventType}


def test_every_kind_has_a_view_of_its_own() -> None:
    assert sorted(of.kind for of in VIEWS) == sorted(str(one) for one in EventType)


@pytest.mark.parametrize("of", VIEWS)
def test_every_view_reads_fields_that_events_have(of: type[EventView]) -> None:
    assert isinstance(view(Event(EventType(of.kind)), of), of)
    assert getattr(kici, of.__name__) is of


def test_a_view_has_the_names_of_its_kind() -> None:
    event = Event(EventType.PULL_REQUEST, action="opened", pr_number=3, branch="x", base_branch="main", message="Do it")
    found = view(event, kici.PullRequestEvent)
    assert (found.number, found.head_branch, found.title) == (3, "x", "Do it")


@pytest.mark.parametrize(
    ("event", "of", "fields"),
    [
        (
            Event(EventType.WORKFLOW_RUN, action="completed", event_name="CI", state="failure", commit="c" * 40),
            kici.WorkflowRunEvent,
            {"action": "completed", "workflow": "CI", "conclusion": "failure", "commit": "c" * 40},
        ),
        (
            Event(EventType.DISPATCH, event_name="deploy", inputs={"to": "prod"}, actor="ann"),
            kici.DispatchEvent,
            {"name": "deploy", "inputs": {"to": "prod"}, "actor": "ann"},
        ),
        (
            Event(EventType.WEBHOOK, forge_event="deployment", action="created", source_repo="a/b", payload=[1]),
            kici.WebhookEvent,
            {"name": "deployment", "action": "created", "source_repo": "a/b", "actor": "", "payload": [1]},
        ),
        (
            Event(EventType.WORKFLOW_COMPLETE, workflow="ci", state="failed", commit="c" * 40, source_repo="a/b"),
            kici.WorkflowCompleteEvent,
            {"workflow": "ci", "status": "failed", "commit": "c" * 40, "source_repo": "a/b"},
        ),
        (
            Event(EventType.MANUAL, workflow="ops", inputs={}, actor="admin_token:1"),
            kici.ManualEvent,
            {"workflow": "ops", "inputs": {}, "actor": "admin_token:1"},
        ),
    ],
)
def test_views_say_what_their_kind_calls_it(event: Event, of: type[EventView], fields: dict[str, object]) -> None:
    assert structs.asdict(view(event, of)) == fields


def test_another_kind_is_refused_and_says_which_it_is() -> None:
    with pytest.raises(OtherEvent, match=r"this event is a push, not a comment: look at ctx.event.type first"):
        view(Event(EventType.PUSH), kici.CommentEvent)
