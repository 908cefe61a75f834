from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from kici.engine.events import Event, EventType
from kici.forges.contract import Ignored, Normalized, Unreadable
from kici.forges.github.forge import GithubForge
from tests.contract.forges import samples
from tests.contract.forges.samples import AFTER, BEFORE, GITHUB_PULL_REQUEST, GITHUB_PUSH, TAG_OBJECT, ZERO, github

forge = GithubForge()


def normalize(event: str, payload: dict[str, Any], **source: Any) -> Normalized | Ignored:
    delivery = github(event, payload, **source)
    return forge.normalize(event, delivery.headers, delivery.body, delivery.source)


def event_of(name: str, payload: dict[str, Any]) -> Event:
    found = normalize(name, payload)
    assert isinstance(found, Normalized)
    return found.event


def test_a_push_is_cloned_from_where_the_delivery_says_unless_the_source_knows_better() -> None:
    said = normalize("push", GITHUB_PUSH)
    assert isinstance(said, Normalized)
    assert said.clone_url == "https://github.com/Codertocat/Hello-World.git"
    told = normalize("push", GITHUB_PUSH, clone_url="https://mirror.example/{repo}")
    assert isinstance(told, Normalized)
    assert told.clone_url == "https://mirror.example/Codertocat/Hello-World"


def test_a_deleted_branch_has_no_commit() -> None:
    event = event_of("push", {**GITHUB_PUSH, "after": ZERO, "deleted": True, "commits": [], "head_commit": None})
    assert (event.deleted, event.sha, event.before, event.message) == (True, "", BEFORE, "")
    assert event.changed_files is None


def test_a_new_branch_has_nothing_before_it_and_unknown_changes() -> None:
    event = event_of("push", {**GITHUB_PUSH, "before": ZERO, "created": True})
    assert event.before == ""
    assert event.changed_files is None


@pytest.mark.parametrize(
    "change",
    [
        {"forced": True},
        {"commits": []},
        {"commits": [samples.COMMIT] * 2048},
        {"commits": [{**samples.COMMIT, "added": [f"f{n}" for n in range(3001)]}]},
    ],
)
def test_changes_are_unknown_where_githubs_list_may_be_cut(change: dict[str, Any]) -> None:
    assert event_of("push", {**GITHUB_PUSH, **change}).changed_files is None


def test_a_tag_means_the_commit_that_it_points_to() -> None:
    event = event_of("push", {**GITHUB_PUSH, "ref": "refs/tags/v1.0", "before": ZERO, "after": TAG_OBJECT})
    assert (event.type, event.tag, event.branch, event.sha) == (EventType.TAG, "v1.0", "", AFTER)
    assert event.ref == "refs/tags/v1.0"


def with_head(**head: Any) -> dict[str, Any]:
    pull_request = GITHUB_PULL_REQUEST["pull_request"]
    return {**GITHUB_PULL_REQUEST, "pull_request": {**pull_request, "head": {**pull_request["head"], **head}}}


def test_a_pull_request_from_another_repository_is_a_forks_also_after_the_fork_is_gone() -> None:
    assert event_of("pull_request", with_head(repo={**samples.REPOSITORY, "full_name": "Mallory/Hello-World"})).is_fork
    assert event_of("pull_request", with_head(repo=None)).is_fork
    assert not event_of(
        "pull_request", with_head(repo={**samples.REPOSITORY, "full_name": "codertocat/hello-world"})
    ).is_fork


def test_a_dispatch_starts_at_the_default_branch_if_it_names_none() -> None:
    payload = {key: value for key, value in samples.GITHUB_DISPATCH.items() if key not in ("branch", "client_payload")}
    event = event_of("repository_dispatch", payload)
    assert (event.branch, event.sha, event.inputs) == ("main", "", {})


def test_what_nobody_can_ask_for_is_ignored_with_a_reason() -> None:
    assert normalize("ping", samples.GITHUB_PING) == Ignored("GitHub's ping: the webhook works")
    assert normalize("push", {**GITHUB_PUSH, "ref": "refs/notes/commits"}) == Ignored(
        "kici does nothing on a push to refs/notes/commits"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"after": "--upload-pack=x"},
        {"after": AFTER + "\n"},
        {"ref": "refs/heads/a b"},
        {"repository": {**samples.REPOSITORY, "full_name": "../../etc"}},
        {"repository": {**samples.REPOSITORY, "full_name": "a/b/c"}},
        {"repository": None},
    ],
)
def test_what_github_never_sends_is_not_passed_on(change: dict[str, Any]) -> None:
    with pytest.raises(Unreadable):
        normalize("push", {**GITHUB_PUSH, **change})


def test_githubs_default_content_type_is_read_too() -> None:
    delivery = github("push", GITHUB_PUSH)
    headers = {**delivery.headers, "content-type": "application/x-www-form-urlencoded"}
    body = urlencode({"payload": delivery.body.decode()}).encode()
    assert forge.identify(headers, body, delivery.source).ref == "refs/heads/feature/x"
    assert forge.normalize("push", headers, body, delivery.source) == normalize("push", GITHUB_PUSH)
    with pytest.raises(Unreadable, match="payload"):
        forge.identify(headers, b"other=1", delivery.source)


def test_a_delivery_without_githubs_headers_is_refused_by_name() -> None:
    delivery = github("push", GITHUB_PUSH)
    for name in ("X-GitHub-Event", "X-GitHub-Delivery"):
        headers = {key: value for key, value in delivery.headers.items() if key != name.lower()}
        with pytest.raises(Unreadable, match=name):
            forge.identify(headers, delivery.body, delivery.source)


def test_states_are_in_lower_case_however_github_writes_them() -> None:
    review = {**samples.GITHUB_REVIEW, "review": {**samples.GITHUB_REVIEW["review"], "state": "CHANGES_REQUESTED"}}
    assert event_of("pull_request_review", review).state == "changes_requested"
    run = {**samples.GITHUB_WORKFLOW_RUN, "action": "requested"}
    run["workflow_run"] = {**run["workflow_run"], "conclusion": None}
    assert event_of("workflow_run", run).state == ""


def test_a_created_branch_is_a_branch() -> None:
    event = event_of("create", {**samples.GITHUB_CREATE, "ref": "feature/y", "ref_type": "branch"})
    assert (event.branch, event.tag, event.ref) == ("feature/y", "", "refs/heads/feature/y")


def test_a_very_long_comment_is_cut_for_filters() -> None:
    comment = {**samples.GITHUB_COMMENT, "comment": {"body": "x" * 300_000}}
    assert len(event_of("issue_comment", comment).body) == 262_144


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("issue_comment", {**samples.GITHUB_COMMENT, "issue": {}}),
        ("pull_request_review", {**samples.GITHUB_REVIEW, "pull_request": {"number": 2}}),
        ("release", {**samples.GITHUB_RELEASE, "release": {"tag_name": "--upload-pack=x"}}),
        ("create", {**samples.GITHUB_CREATE, "ref": "-x"}),
        ("status", {**samples.GITHUB_STATUS, "sha": "HEAD"}),
        ("star", {"action": "created"}),
    ],
)
def test_other_events_without_what_github_always_sends_are_refused(name: str, payload: dict[str, Any]) -> None:
    with pytest.raises(Unreadable):
        normalize(name, payload)
