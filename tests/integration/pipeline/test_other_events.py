"""Pull requests, dispatches, generic webhooks and runs started by hand."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from kici.engine.lock_triggers import LockInput
from kici.engine.lockfile import (
    DispatchTrigger,
    GenericWebhookTrigger,
    ManualTrigger,
    PrTrigger,
    PushTrigger,
    Trigger,
)
from kici.orchestrator.pipeline.manual import PROVIDER, ManualStart
from kici.orchestrator.store import events
from kici.wire.api import RunStart
from tests.integration.pipeline.conftest import LOCK, ZERO, Rig
from tests.support.locks import job, lock, workflow


def repository(rig: Rig) -> dict[str, str]:
    return {"full_name": "team/app", "default_branch": "main", "clone_url": f"{rig.forge_url}/team/app.git"}


async def pull_request(rig: Rig, head: str, base: str, *, title: str = "Change", fork: bool = True) -> str:
    full_name = "mallory/app" if fork else "team/app"
    return await rig.deliver(
        await rig.github_source(),
        "pull_request",
        {
            "action": "opened",
            "number": 7,
            "pull_request": {
                "title": title,
                "head": {"ref": "feature", "sha": head, "repo": {"full_name": full_name}},
                "base": {"ref": "main", "sha": base, "repo": {"full_name": "team/app"}},
            },
            "repository": repository(rig),
            "sender": {"login": "mallory"},
        },
    )


@pytest.mark.parametrize("fork", [True, False])
async def test_a_pull_request_runs_the_workflows_of_its_base_branch_on_its_own_code(rig: Rig, fork: bool) -> None:
    base = rig.remote.commit({LOCK: lock(workflow("good", on=[PrTrigger()], jobs=[job("checked")]))})
    rig.remote.git("checkout", "-q", "-b", "feature")
    head = rig.remote.commit({LOCK: lock(workflow("evil", on=[PrTrigger()], jobs=[job("steal")]))})
    rig.remote.push("main", "feature")
    await pull_request(rig, head, base, fork=fork)
    await rig.done()
    (run,) = await rig.runs()
    assert (run["workflow_name"], run["sha"], run["workflow_sha"]) == ("good", head, base)
    assert (run["ref"], run["trigger_event"]) == ("refs/pull/7/head", "pull_request:opened")
    assert (run["trust_tier"], run["lock_file_source"], run["contributor_username"]) == ("unknown", "base", "mallory")
    assert [row["job_name"] for row in await rig.jobs()] == ["checked"]


async def test_a_pull_request_to_a_base_without_a_lock_file_starts_nothing(rig: Rig) -> None:
    base = rig.remote.commit({"README": "x"})
    rig.remote.git("checkout", "-q", "-b", "feature")
    head = rig.remote.commit({LOCK: lock(workflow("evil", on=[PrTrigger()]))})
    rig.remote.push("main", "feature")
    await pull_request(rig, head, base)
    assert (await rig.done()).status == "lockfile_missing"
    assert await rig.runs() == []


async def test_a_pull_request_that_fails_to_break_the_lock_file_of_its_head_runs(rig: Rig) -> None:
    base = rig.remote.commit({LOCK: lock(workflow("good", on=[PrTrigger()]))})
    rig.remote.git("checkout", "-q", "-b", "feature")
    head = rig.remote.commit({LOCK: "{"})
    rig.remote.push("main", "feature")
    await pull_request(rig, head, base, title="Innocent [skip ci]")
    assert (await rig.done()).status == "processed"
    assert len(await rig.runs()) == 1


async def test_path_filters_of_a_pull_request_leave_out_what_its_base_did_meanwhile(rig: Rig) -> None:
    def on(*paths: str) -> list[Trigger]:
        return [PrTrigger(paths=paths)]

    rig.remote.commit({LOCK: lock(workflow("src", on=on("src/**")), workflow("docs", on=on("docs/**")))})
    rig.remote.git("checkout", "-q", "-b", "feature")
    head = rig.remote.commit({"src/new.py": "1"})
    rig.remote.git("checkout", "-q", "main")
    base = rig.remote.commit({"docs/meanwhile.md": "1"})
    rig.remote.push("main", "feature")
    await pull_request(rig, head, base)
    await rig.done()
    assert [run["workflow_name"] for run in await rig.runs()] == ["src"]


async def test_a_dispatch_is_about_the_head_of_the_default_branch_now(rig: Rig) -> None:
    sha = rig.remote.commit({LOCK: lock(workflow("deploy", on=[DispatchTrigger(types=("go",))]))})
    rig.remote.push()
    await rig.deliver(
        await rig.github_source(),
        "repository_dispatch",
        {
            "action": "go",
            "branch": "main",
            "client_payload": {"target": "x"},
            "repository": repository(rig),
            "sender": {"login": "ann"},
        },
    )
    await rig.done()
    (run,) = await rig.runs()
    assert (run["workflow_name"], run["sha"], run["ref"]) == ("deploy", sha, "refs/heads/main")
    assert run["event"]["inputs"] == {"target": "x"}


async def test_typed_inputs_reach_the_run_with_their_defaults_and_bad_ones_end_the_event(rig: Rig) -> None:
    wanted = {
        "target": LockInput("string", required=True, choices=("prod", "staging")),
        "count": LockInput("integer", default=1),
    }
    typed = workflow("typed", on=[DispatchTrigger(("go",), wanted)], jobs=[job("a", env={"T": "{input.target}"})])
    any_text = workflow("free", on=[DispatchTrigger(("both",)), DispatchTrigger(("go2",))])
    both = workflow("both", on=[DispatchTrigger(("both",), wanted)])
    rig.remote.commit({LOCK: lock(typed, any_text, both)})
    rig.remote.push()

    async def dispatch(kind: str, payload: Any) -> Any:
        body = {"action": kind, "branch": "main", "client_payload": payload, "repository": repository(rig)}
        await rig.deliver(await rig.github_source(), "repository_dispatch", body)
        return await rig.done()

    assert (await dispatch("go", {"target": "prod"})).status == "processed"
    (run,) = await rig.runs()
    assert run["event"]["inputs"] == {"target": "prod", "count": "1"}
    for payload, says in (
        ({"target": "prd"}, "typed: input 'target' is 'prd' (did you mean 'prod'?)"),
        ({"target": "prod", "count": [1]}, "typed: input 'count' is '[1]'; it is a whole number"),
        ({"target": "prod", "more": {"a": 1}}, "typed: there is no input 'more'"),
        (None, "typed: input 'target' is missing"),
    ):
        done = await dispatch("go", payload)
        assert done.status == "failed"
        assert says in (await rig.last_event())["error_message"]
    done = await dispatch("both", {"x": 1})
    assert (done.status, len(done.run_ids)) == ("processed", 1)
    assert "both: there is no input 'x'" in str((await rig.last_event())["warnings"])


async def test_a_generic_webhook_starts_what_default_branches_have_registered_for_its_source(rig: Rig) -> None:
    hooked = workflow("hooked", on=[PushTrigger(branches=("x",)), GenericWebhookTrigger("grafana", ("alert",))])
    sha = rig.local.commit({LOCK: lock(hooked, workflow("other", on=[GenericWebhookTrigger("elsewhere")]))})
    rig.local.push()
    await rig.push(sha)
    await rig.done()
    grafana = await rig.add_source("grafana", "generic")
    event_id = await rig.deliver(grafana, "alert", {"level": "red"})
    assert (await rig.done()).status == "processed"
    (run,) = await rig.runs()
    local = await rig.local_source()
    assert (run["workflow_name"], run["repo_identifier"], run["sha"]) == ("hooked", "local/app", sha)
    assert (run["workflow_sha"], run["ref"], run["clone_url"]) == (sha, "refs/heads/main", "/git/local/app")
    assert (run["routing_key"], run["provider"]) == (local.routing_key, "internal")
    assert run["trigger_event"] == "generic_webhook:alert"
    assert run["event"]["payload"] == {"level": "red"}
    assert len(run["lock_sha256"]) == 64
    assert (await rig.event(event_id))["routing_key"] == grafana.routing_key

    await rig.deliver(grafana, "resolved", {})
    assert (await rig.done()).run_ids == ()
    await rig.pool.execute("update workflow_registrations set disabled = true")
    event_id = await rig.deliver(grafana, "alert", {})
    assert (await rig.done()).run_ids == ()
    assert (await rig.event(event_id))["warnings"] == ["no workflow on a default branch has generic_webhook('grafana')"]


async def test_one_webhook_starts_workflows_of_the_same_name_in_two_repositories(rig: Rig) -> None:
    wf = workflow("hooked", on=[GenericWebhookTrigger("grafana")])
    local = rig.local.commit({LOCK: lock(wf)})
    rig.local.push()
    await rig.push(local)
    await rig.done()
    remote = rig.remote.commit({LOCK: lock(wf)})
    rig.remote.push()
    await rig.deliver(
        await rig.github_source(),
        "push",
        {
            "ref": "refs/heads/main",
            "before": ZERO,
            "after": remote,
            "commits": [],
            "head_commit": {"id": remote, "message": "x", "added": [], "removed": [], "modified": []},
            "repository": repository(rig),
            "pusher": {"name": "ann"},
        },
    )
    await rig.done()
    await rig.deliver(await rig.add_source("grafana", "generic"), "default", {})
    assert len((await rig.done()).run_ids) == 2
    assert sorted(run["repo_identifier"] for run in await rig.runs()) == ["local/app", "team/app"]


async def test_what_a_removed_source_has_registered_is_not_started_any_more(rig: Rig) -> None:
    sha = rig.local.commit({LOCK: lock(workflow("hooked", on=[GenericWebhookTrigger("grafana")]))})
    rig.local.push()
    await rig.push(sha)
    await rig.done()
    grafana = await rig.add_source("grafana", "generic")
    await rig.pool.execute("update workflow_registrations set routing_key = 'github:gone'")
    await rig.deliver(grafana, "default", {})
    assert (await rig.done()).run_ids == ()


async def by_hand(rig: Rig, **start: Any) -> str:
    source = await rig.local_source()
    body = msgspec.json.encode(
        ManualStart(
            RunStart(**start), "local/app", "internal", source.routing_key, "/git/local/app", "main", "admin_token:1"
        )
    )
    event = events.NewEvent(
        id=events.new_id(),
        delivery_id=f"manual:{hashlib.sha256(body).hexdigest()}",
        routing_key=source.routing_key,
        event="manual",
        action="",
        provider=PROVIDER,
        headers={},
        repo="",
        ref="",
        content_type="application/json",
        size=len(body),
        sha256="0" * 64,
        body=body,
    )
    async with rig.pool.acquire() as db:
        assert await events.insert_batch(db, [event]) == [True]
    return event.id


async def test_a_workflow_with_manual_is_started_by_hand_at_the_ref_that_was_asked_for(rig: Rig) -> None:
    wf = workflow("ops", on=[ManualTrigger()], jobs=[job("one", env={"TARGET": "{input.target}"})])
    rig.local.commit({LOCK: lock(workflow("ops", on=[PushTrigger()]))})
    rig.local.git("checkout", "-q", "-b", "feature")
    sha = rig.local.commit({LOCK: lock(wf, workflow("also", on=[ManualTrigger()]))})
    rig.local.push("main", "feature")
    await by_hand(rig, workflow="ops", ref="feature", inputs={"target": "blue"})
    await rig.done()
    (run,) = await rig.runs()
    assert (run["workflow_name"], run["sha"], run["ref"]) == ("ops", sha, "refs/heads/feature")
    assert (run["trigger_event"], run["triggered_by"], run["provider"]) == ("manual", "admin_token:1", "internal")
    assert (await rig.jobs())[0]["definition"]["env"] == {"TARGET": "blue"}


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        ({"workflow": "pushed"}, "has no manual() among its triggers; by hand one can start ops, typed"),
        ({"workflow": "ghost"}, "there is no workflow 'ghost' at that commit; by hand one can start ops, typed"),
        ({"workflow": "typed", "inputs": {"count": "x"}}, "typed: input 'count' is 'x'; it is a whole number"),
        ({"workflow": "ops", "ref": "nowhere"}, "local/app has no 'nowhere'"),
        ({"workflow": "ops", "ref": "--output=x"}, "cannot be the name of a branch or tag"),
    ],
)
async def test_what_cannot_be_started_by_hand_says_why(rig: Rig, start: dict[str, Any], sentence: str) -> None:
    typed = workflow("typed", on=[ManualTrigger({"count": LockInput("integer", default=1)})])
    rig.local.commit({LOCK: lock(workflow("pushed"), workflow("ops", on=[ManualTrigger()]), typed)})
    rig.local.push()
    event_id = await by_hand(rig, **start)
    assert (await rig.done()).status == "failed"
    assert sentence in (await rig.event(event_id))["error_message"]
    assert await rig.runs() == []


async def test_a_webhook_cannot_pass_for_the_request_of_a_person(rig: Rig) -> None:
    rig.local.commit({LOCK: lock(workflow("ops", on=[ManualTrigger()]))})
    rig.local.push()
    source = await rig.local_source()
    forged = ManualStart(RunStart("ops"), "local/app", "internal", source.routing_key, "/git/local/app", "main", "x:1")
    await rig.deliver(await rig.add_source("grafana", "generic"), "manual", msgspec.json.encode(forged))
    assert (await rig.done()).run_ids == ()
    assert await rig.runs() == []
