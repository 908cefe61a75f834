from __future__ import annotations

from typing import get_args

import pytest

import kici
from kici.engine.events import Event, EventType
from kici.sdk import event_views
from kici.sdk.errors import OtherEvent
from kici.sdk.event_views import EventView, view

VIEWS = EventView.__subclasses__()


def test_the_kinds_are_those_of_the_engine() -> None:
    assert set(get_args(event_views.EventKind)) == {str(one) for one in EventType}


@pytest.mark.parametrize("of", VIEWS)
def test_every_view_reads_fields_that_events_have(of: type[EventView]) -> None:
    assert isinstance(view(Event(EventType(of.kind)), of), of)
    assert getattr(kici, of.__name__) is of


def test_a_view_has_the_names_of_its_kind() -> None:
    event = Event(EventType.PULL_REQUEST, action="opened", pr_number=3, branch="x", base_branch="main", message="Do it")
    found = view(event, kici.PullRequestEvent)
    assert (found.number, found.head_branch, found.title) == (3, "x", "Do it")


def test_another_kind_is_refused_and_says_which_it_is() -> None:
    with pytest.raises(OtherEvent, match=r"this event is a push, not a comment: look at ctx.event.type first"):
        view(Event(EventType.PUSH), kici.CommentEvent)
