from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.engine.errors import TemplateError
from kici.engine.events import Event, EventType
from kici.engine.templates import check, expand, fields, placeholders

PUSH = Event(type=EventType.PUSH, branch="main", sha="0123456789abcdef", repo="acme/app", actor="ada")


def test_fields_come_from_the_event_the_job_and_the_matrix() -> None:
    values = fields(PUSH, workflow="ci", job="deploy", matrix={"os": "linux"})
    text = expand("{workflow}/{job}-{branch}@{short_sha}:{matrix.os} {ref}", values)
    assert text == "ci/deploy-main@0123456:linux refs/heads/main"


def test_an_absent_field_is_empty_and_in_strict_places_an_error() -> None:
    values = fields(PUSH, workflow="ci", job="deploy", matrix={})
    assert expand("x{tag}{pr}", values) == "x"
    with pytest.raises(TemplateError, match="this event has no tag"):
        expand("x{tag}", values, strict=True)


def test_an_unknown_field_is_refused_with_the_list_of_known_ones() -> None:
    with pytest.raises(TemplateError, match=r"there is no \{brnch\}; there are action, actor, branch"):
        check("deploy-{brnch}")


@pytest.mark.parametrize("template", ["{", "a}b", "{a{b}"])
def test_a_lone_brace_is_refused(template: str) -> None:
    with pytest.raises(TemplateError, match="lone"):
        placeholders(template)


def test_the_branch_of_a_pull_request_is_its_head() -> None:
    event = Event(type=EventType.PULL_REQUEST, branch="fix", base_branch="main", pr_number=7)
    assert expand("{branch} {pr}", fields(event, workflow="ci", job="j", matrix={})) == "fix 7"


@given(st.text(max_size=20))
def test_doubled_braces_stand_for_themselves(text: str) -> None:
    assert expand(text.replace("{", "{{").replace("}", "}}"), {}) == text
