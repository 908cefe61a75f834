from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import kici
from kici import DefinitionError
from kici.sdk import triggers

anything: Any = kici
"""For calls that a type checker refuses."""


@dataclasses.dataclass
class Inputs:
    target: str = "staging"


CALLS: dict[str, Callable[[], kici.Trigger]] = {
    "push": lambda: kici.push(),
    "tag": lambda: kici.tag("v*"),
    "pr": lambda: kici.pr(),
    "comment": lambda: kici.comment(actions="created", source=["pr"], body_match=["/deploy *", re.compile("^/go")]),
    "review": lambda: kici.review(actions="submitted", states=("approved", "dismissed")),
    "review_comment": lambda: kici.review_comment(actions=["created", "edited"]),
    "release": lambda: kici.release(actions="published"),
    "dispatch": lambda: kici.dispatch(types="go", inputs=Inputs),
    "create": lambda: kici.create(ref_types="tag", patterns="v*"),
    "delete": lambda: kici.delete(ref_types="branch"),
    "status": lambda: kici.status(contexts="ci/*", states="failure"),
    "workflow_run": lambda: kici.workflow_run(actions="completed", workflows="CI", conclusions="success"),
    "fork": lambda: kici.fork(),
    "star": lambda: kici.star(actions="created"),
    "watch": lambda: kici.watch(actions="started"),
    "webhook": lambda: kici.webhook("deployment", actions="created"),
    "kici_event": lambda: kici.kici_event("built", match={"$.ok": True}, not_={"$.n": [1, None]}, source="o/r"),
    "workflow_complete": lambda: kici.workflow_complete("ci", status="success", source="o/r"),
    "job_complete": lambda: kici.job_complete(workflow="ci", job="build", status=["failed", "infra_lost"]),
    "generic_webhook": lambda: kici.generic_webhook("jira", events="issue", match={"$.a": re.compile("x")}),
    "schedule": lambda: kici.schedule("0 6 * * MON-FRI", tz="Europe/Berlin", inputs=Inputs),
    "lifecycle": lambda: kici.lifecycle("job_failed", sources="o/r"),
    "manual": lambda: kici.manual(inputs=Inputs),
}


def test_every_trigger_of_the_vocabulary_is_a_constructor_of_its_name() -> None:
    assert set(CALLS) == set(triggers.NAMES)
    for name, call in CALLS.items():
        made = call()
        assert isinstance(made, kici.Trigger)
        assert type(made).__name__.lower() == name.replace("_", "")


def test_a_trigger_knows_its_authors_line() -> None:
    first, second = (
        kici.schedule("0 6 * * *"),
        kici.fork(),
    )
    assert second.location.line - first.location.line == 1
    assert first.location.file == __file__


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: anything.comment(actions="create"),
            r"comment\(…\): actions: there is no 'create' .did you mean 'cre",
        ),
        (lambda: anything.comment(source="pull"), "it is one of issue, pr"),
        (lambda: anything.review(states="aproved"), "did you mean 'approved'"),
        (lambda: anything.review(actions=["submitted", "sumbitted"]), "did you mean 'submitted'"),
        (lambda: anything.review_comment(actions="removed"), "created, edited, deleted"),
        (lambda: anything.release(actions="publish"), "did you mean 'published'"),
        (lambda: anything.create(ref_types="tags"), "did you mean 'tag'"),
        (lambda: anything.delete(ref_types="brunch"), "did you mean 'branch'"),
        (lambda: anything.status(states="failed"), "did you mean 'failure'"),
        (lambda: anything.workflow_run(conclusions="succes"), "did you mean 'success'"),
        (lambda: anything.workflow_run(actions="complete"), "did you mean 'completed'"),
        (lambda: anything.star(actions="create"), "did you mean 'created'"),
        (lambda: anything.watch(actions="stopped"), "it is one of started"),
        (lambda: anything.workflow_complete(status="failure"), "there is no 'failure'"),
        (lambda: anything.job_complete(status="skiped"), "did you mean 'skipped'"),
        (lambda: anything.lifecycle("job_fail"), "did you mean 'job_failed'"),
    ],
)
def test_a_word_that_nothing_ever_matches_is_refused_with_the_nearest(call: Any, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        call()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: kici.webhook(()), "events is empty"),
        (lambda: kici.kici_event(" "), "write the name that ctx.emit"),
        (lambda: kici.generic_webhook(""), "write the name of the orchestrator's source"),
        (lambda: kici.schedule(""), "write five fields"),
        (lambda: kici.schedule("0 0 * * *", tz=" "), "write a time zone"),
        (lambda: kici.lifecycle(()), "events is empty"),
        (lambda: anything.lifecycle("registration_updated"), "nothing tells of 'registration_updated' in this version"),
        (lambda: anything.kici_event("a", match=["$.a"]), "write {"),
        (lambda: anything.kici_event("a", match={"$.a": {"b": 1}}), r"match \$\.a: .* is no text, number"),
        (lambda: kici.kici_event("a", match={"$.a": []}), "an empty list is equal to nothing"),
        (lambda: anything.dispatch(inputs={"a": str}), "write a dataclass"),
        (lambda: anything.manual(inputs=Inputs()), "itself: inputs=Inputs"),
    ],
)
def test_what_cannot_start_anything_is_refused(call: Any, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        call()


def test_a_name_of_a_trigger_instead_of_a_call_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"call it: comment\(…\)"):
        triggers.checked_triggers("workflow 'ci'", kici.comment)
    with pytest.raises(DefinitionError, match=r"'scedule' is no trigger .did you mean 'schedule'"):
        triggers.checked_triggers("workflow 'ci'", "scedule")


def test_inputs_may_be_a_struct() -> None:
    class Given(msgspec.Struct):
        count: int = 1

    assert kici.manual(inputs=Given).inputs is Given
