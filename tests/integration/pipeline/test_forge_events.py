"""Comments, reviews, releases, refs, statuses and stars, `webhook(…)`, and events that workflows emit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from kici.engine import lock_triggers as on
from kici.engine.lock_triggers import Trigger
from kici.orchestrator.pipeline.emitted import Emitted
from kici.orchestrator.store import events
from tests.contract.forges import samples
from tests.integration.pipeline.conftest import LOCK, Rig
from tests.support.locks import lock, workflow


async def deliver(rig: Rig, name: str, payload: dict[str, Any]) -> Any:
    repository = {"full_name": "team/app", "default_branch": "main", "clone_url": f"{rig.forge_url}/team/app.git"}
    return await rig.deliver(await rig.github_source(), name, {**payload, "repository": repository})


@pytest.mark.parametrize(
    ("name", "payload", "trigger", "told"),
    [
        ("issue_comment", samples.GITHUB_COMMENT, on.CommentTrigger(source=("issue",)), "comment:created"),
        ("delete", samples.GITHUB_DELETE, on.DeleteTrigger(("branch",), ("feature/*",)), "delete"),
        ("status", samples.GITHUB_STATUS, on.StatusTrigger(("ci/*",), ("failure",)), "status"),
        ("workflow_run", samples.GITHUB_WORKFLOW_RUN, on.WorkflowRunTrigger(), "workflow_run:completed"),
        ("fork", samples.GITHUB_FORK, on.ForkTrigger(), "fork"),
        ("star", samples.GITHUB_STAR, on.StarTrigger(), "star:created"),
        ("watch", samples.GITHUB_WATCH, on.WatchTrigger(), "watch:started"),
    ],
)
async def test_what_is_about_no_commit_runs_the_head_of_the_default_branch(
    rig: Rig, name: str, payload: dict[str, Any], trigger: Trigger, told: str
) -> None:
    sha = rig.remote.commit({LOCK: lock(workflow("wanted", on=[trigger]), workflow("other"))})
    rig.remote.push()
    rig.remote.git("checkout", "-q", "-b", "feature/x")
    rig.remote.commit({LOCK: lock(workflow("of the branch", on=[trigger]))})
    rig.remote.push("feature/x")
    event_id = await deliver(rig, name, payload)
    assert (await rig.done()).status == "processed"
    (run,) = await rig.runs()
    assert (run["workflow_name"], run["sha"], run["workflow_sha"]) == ("wanted", sha, sha)
    assert (run["ref"], run["trigger_event"], run["trust_tier"]) == ("refs/heads/main", told, None)
    assert run["event"]["deliveryId"] == (await rig.event(event_id))["delivery_id"]


@pytest.mark.parametrize(
    ("name", "payload", "trigger"),
    [
        ("release", samples.GITHUB_RELEASE, on.ReleaseTrigger(("published",))),
        ("create", {**samples.GITHUB_CREATE, "ref": "0.0.1"}, on.CreateTrigger(("tag",), ("0.*",))),
    ],
)
async def test_a_release_and_a_new_tag_run_the_workflows_of_the_default_branch_on_the_tag(
    rig: Rig, name: str, payload: dict[str, Any], trigger: Trigger
) -> None:
    tagged = rig.remote.commit({"README": "old"})
    rig.remote.git("tag", "0.0.1")
    head = rig.remote.commit({LOCK: lock(workflow("publish", on=[trigger]))})
    rig.remote.push("HEAD", "0.0.1")
    await deliver(rig, name, payload)
    assert (await rig.done()).status == "processed"
    (run,) = await rig.runs()
    assert (run["sha"], run["workflow_sha"], run["ref"]) == (tagged, head, "refs/tags/0.0.1")


async def test_a_release_without_its_tag_is_told_on_the_default_branch(rig: Rig) -> None:
    head = rig.remote.commit({LOCK: lock(workflow("draft", on=[on.ReleaseTrigger(("created",))]))})
    rig.remote.push()
    await deliver(rig, "release", {**samples.GITHUB_RELEASE, "action": "created"})
    assert (await rig.done()).status == "processed"
    (run,) = await rig.runs()
    assert (run["sha"], run["ref"], run["event"]["eventName"]) == (head, "refs/heads/main", "0.0.1")


@pytest.mark.parametrize("name", ["issue_comment", "pull_request_review", "pull_request_review_comment"])
async def test_what_is_said_of_a_pull_request_runs_the_bases_workflows_on_its_code_without_trust(
    rig: Rig, name: str
) -> None:
    triggers: list[Trigger] = [on.CommentTrigger(source=("pr",)), on.ReviewTrigger(), on.ReviewCommentTrigger()]
    base = rig.remote.commit({LOCK: lock(workflow("good", on=triggers))})
    rig.remote.git("checkout", "-q", "-b", "changes")
    head = rig.remote.commit({LOCK: lock(workflow("evil", on=triggers))})
    rig.remote.push("main", "changes", "changes:refs/pull/2/head")
    pull_request = samples.GITHUB_PULL_REQUEST["pull_request"]
    here = {
        **pull_request,
        "head": {**pull_request["head"], "sha": head},
        "base": {**pull_request["base"], "sha": base},
    }
    payload = {
        "issue_comment": samples.GITHUB_PULL_REQUEST_COMMENT,
        "pull_request_review": {**samples.GITHUB_REVIEW, "pull_request": here},
        "pull_request_review_comment": {**samples.GITHUB_REVIEW_COMMENT, "pull_request": here},
    }[name]
    await deliver(rig, name, payload)
    assert (await rig.done()).status == "processed"
    (run,) = await rig.runs()
    assert (run["workflow_name"], run["sha"], run["workflow_sha"]) == ("good", head, base)
    assert (run["ref"], run["trust_tier"], run["lock_file_source"]) == ("refs/pull/2/head", "unknown", "base")
    assert run["contributor_username"] == "Codertocat"


async def test_a_comment_on_a_pull_request_that_is_gone_fails_with_its_number(rig: Rig) -> None:
    rig.remote.commit({LOCK: lock(workflow("good", on=[on.CommentTrigger()]))})
    rig.remote.push()
    await deliver(rig, "issue_comment", samples.GITHUB_PULL_REQUEST_COMMENT)
    assert (await rig.done()).status == "failed"
    assert "no head of pull request 2" in (await rig.last_event())["error_message"]


async def test_a_webhook_trigger_takes_any_delivery_of_any_source_by_its_own_name(rig: Rig) -> None:
    hooked = workflow("hooked", on=[on.WebhookTrigger(("deployment", "push", "alert"), ("created", "", "alert"))])
    sha = rig.local.commit({LOCK: lock(hooked)})
    rig.local.push()
    await rig.push(sha)
    first = await rig.done()
    assert first.status == "processed"
    assert await rig.runs() == [], "it exists once its push is processed"
    await rig.push(sha)
    await rig.done()
    await deliver(rig, "deployment", samples.GITHUB_DEPLOYMENT)
    assert (await rig.done()).status == "processed"
    await deliver(rig, "deployment", {**samples.GITHUB_DEPLOYMENT, "action": "deleted"})
    await rig.done()
    await rig.deliver(await rig.add_source("grafana", "generic"), "alert", {"level": "red"})
    await rig.done()
    runs = await rig.runs()
    assert [run["event"]["forgeEvent"] for run in runs] == ["push", "deployment", "alert"]
    assert {(run["repo_identifier"], run["sha"], run["workflow_sha"]) for run in runs} == {("local/app", sha, sha)}
    assert runs[1]["event"]["sourceRepo"] == "team/app"
    await deliver(rig, "gollum", {"action": "created"})
    assert (await rig.done()).run_ids == ()
    assert "no workflow on a default branch has webhook('gollum')" in str((await rig.last_event())["warnings"])


EMITTED = Emitted(
    name="built",
    payload={"image": "app:1", "ok": True},
    repo="team/lib",
    provider="github",
    routing_key="github:hub",
    clone_url="https://x/team/lib.git",
    default_branch="main",
    branch="main",
    sha="1" * 40,
    run_id="11111111-1111-4111-8111-111111111111",
    job_id="22222222-2222-4222-8222-222222222222",
    workflow="lib",
    job="build",
    chain_depth=1,
)


async def emit(rig: Rig, emitted: Emitted) -> None:
    body = msgspec.json.encode(emitted)
    event = events.NewEvent(
        id=events.new_id(),
        delivery_id=f"kici_event:{emitted.job_id}:{emitted.chain_depth}:{len(body)}",
        routing_key=emitted.routing_key,
        event="kici_event",
        action=emitted.name,
        provider="kici_event",
        headers={},
        repo=emitted.repo,
        ref="",
        content_type="application/json",
        size=len(body),
        sha256="0" * 64,
        body=body,
    )
    async with rig.pool.acquire() as db:
        assert await events.insert_batch(db, [event]) == [True]


async def test_an_emitted_event_starts_what_default_branches_have_registered_for_it(rig: Rig) -> None:
    wanted = workflow("wanted", on=[on.KiciEventTrigger("built", {"$.ok": True}, source=("team/lib",))])
    filtered = workflow("filtered", on=[on.KiciEventTrigger("built", {"$.image": "other"})])
    sha = rig.local.commit({LOCK: lock(wanted, filtered, workflow("else", on=[on.KiciEventTrigger("tested")]))})
    rig.local.push()
    await rig.push(sha)
    await rig.done()
    await emit(rig, EMITTED)
    assert (await rig.done()).status == "processed"
    (run,) = await rig.runs()
    assert (run["workflow_name"], run["repo_identifier"], run["sha"]) == ("wanted", "local/app", sha)
    event = run["event"]
    assert (event["eventName"], event["sourceRepo"], event["chainDepth"]) == ("built", "team/lib", 1)
    assert (event["payload"], run["trust_tier"]) == ({"image": "app:1", "ok": True}, None)
    assert "payload $.image" in str((await rig.last_event())["warnings"])


async def test_a_circle_of_emitted_events_ends_after_ten(rig: Rig) -> None:
    sha = rig.local.commit({LOCK: lock(workflow("circle", on=[on.KiciEventTrigger("built")]))})
    rig.local.push()
    await rig.push(sha)
    await rig.done()
    await emit(rig, replace(EMITTED, chain_depth=10))
    assert len((await rig.done()).run_ids) == 1
    await emit(rig, replace(EMITTED, chain_depth=11))
    assert (await rig.done()).status == "failed"
    assert "10 events led to this one" in (await rig.last_event())["error_message"]
