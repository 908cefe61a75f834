"""What a push to a repository of our own becomes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kici.engine.lockfile import (
    LockNeed,
    ManualTrigger,
    PushTrigger,
    Retry,
    TagTrigger,
)
from tests.integration.pipeline.conftest import LOCK, ZERO, Rig
from tests.support.locks import job, lock, workflow

CI = workflow(
    jobs=[
        job("lint", steps=("ruff", "mypy"), env={"BRANCH": "{branch}"}, priority=2),
        job("test", needs=["lint"], matrix={"python": ("3.11", "3.13")}, retry_on_infra=Retry(3)),
        job("report", needs=["lint", LockNeed("test", ("success", "failed"))], runs_on=("linux", "gpu-*")),
    ],
    env={"BRANCH": "none", "SHA": "{short_sha}"},
    timeout_ms=60_000,
)


async def test_a_push_becomes_a_run_with_its_jobs_needs_steps_and_queue_rows(rig: Rig) -> None:
    sha = rig.local.commit({LOCK: lock(CI)})
    rig.local.push()
    event_id = await rig.push(sha, message="Add CI\n\nAll of it.")
    done = await rig.done()
    (run,) = await rig.runs()
    assert done.status == "processed"
    assert done.run_ids == (run["run_id"],)
    source = await rig.local_source()
    assert {
        name: run[name]
        for name in (
            *("event_id", "workflow_name", "status", "provider", "routing_key", "repo_identifier", "ref", "sha"),
            *("workflow_sha", "clone_url", "trigger_event", "commit_message", "workflow_timeout_ms", "trust_tier"),
        )
    } == {
        "event_id": event_id,
        "workflow_name": "ci",
        "status": "pending",
        "provider": "internal",
        "routing_key": source.routing_key,
        "repo_identifier": "local/app",
        "ref": "refs/heads/main",
        "sha": sha,
        "workflow_sha": sha,
        "clone_url": "/git/local/app",
        "trigger_event": "push",
        "commit_message": "Add CI",
        "workflow_timeout_ms": 60_000,
        "trust_tier": None,
    }
    assert len(run["lock_sha256"]) == 64
    assert run["trigger_decision"]["summary"] == "Matched trigger 1 (push)"
    assert run["event"]["branch"] == "main"

    jobs = await rig.jobs()
    assert [(row["job_name"], row["base_job_name"], row["status"], row["matrix_values"]) for row in jobs] == [
        ("lint", "lint", "queued", None),
        ("test (3.11)", "test", "pending", {"python": "3.11"}),
        ("test (3.13)", "test", "pending", {"python": "3.13"}),
        ("report", "report", "pending", None),
    ]
    assert [row["needs_satisfied"] for row in jobs] == [True, False, False, False]
    assert jobs[0]["definition"]["env"] == {"BRANCH": "main", "SHA": sha[:7]}
    assert jobs[1]["retry_on_infra"]["attempts"] == 3
    assert jobs[3]["runs_on_labels"] == ["linux", "gpu-*"]

    needs = await rig.pool.fetch("select * from execution_job_needs order by job_name, upstream_name")
    ids = {row["job_name"]: row["job_id"] for row in jobs}
    assert [(row["job_name"], row["upstream_name"], row["run_on"]) for row in needs] == [
        ("report", "lint", ["success"]),
        ("report", "test (3.11)", ["failed", "success"]),
        ("report", "test (3.13)", ["failed", "success"]),
        ("test (3.11)", "lint", ["success"]),
        ("test (3.13)", "lint", ["success"]),
    ]
    assert all(ids[row["job_name"]] == row["job_id"] for row in needs)
    assert all(ids[row["upstream_name"]] == row["upstream_job_id"] for row in needs)

    steps = await rig.pool.fetch(
        """
        select j.job_name, s.* from execution_steps s join execution_jobs j using (job_id)
         order by position, step_index
        """
    )
    assert [(row["job_name"], row["step_index"], row["step_name"], row["status"], row["attempt"]) for row in steps] == [
        ("lint", 0, "ruff", "pending", 1),
        ("lint", 1, "mypy", "pending", 1),
        ("test (3.11)", 0, "run", "pending", 1),
        ("test (3.13)", 0, "run", "pending", 1),
        ("report", 0, "run", "pending", 1),
    ]

    (queued,) = await rig.pool.fetch(
        """
        select q.*, l.labels, q.expires_at - q.enqueued_at as waits
          from dispatch_queue q join label_sets l on l.id = label_set_id
        """
    )
    assert queued["id"] == ids["lint"]
    assert (queued["job_name"], queued["repository"], queued["labels"]) == ("lint", "local/app", ["kici:os:linux"])
    assert queued["waits"] == timedelta(hours=1)

    event = await rig.event(event_id)
    assert (event["status"], event["matched_count"], event["run_id"]) == ("processed", 1, run["run_id"])
    assert (event["repo_identifier"], event["ref"], event["claimed_by"]) == ("local/app", "refs/heads/main", None)
    assert rig.notified == [("kici_queue", ""), ("kici_runs", run["run_id"])]


async def test_each_matching_workflow_gets_its_run_and_the_others_do_not(rig: Rig) -> None:
    sha = rig.local.commit(
        {LOCK: lock(workflow("a"), workflow("b", on=[PushTrigger(branches=("dev",))]), workflow("c"))}
    )
    rig.local.push()
    event_id = await rig.push(sha)
    await rig.done()
    assert [run["workflow_name"] for run in await rig.runs()] == ["a", "c"]
    assert (await rig.event(event_id))["matched_count"] == 2


async def test_when_nothing_matches_the_event_says_why(rig: Rig) -> None:
    sha = rig.local.commit(
        {LOCK: lock(workflow("a", on=[PushTrigger(branches=("dev", "rel/*"))]), workflow("b", on=[TagTrigger()]))}
    )
    rig.local.push()
    event_id = await rig.push(sha)
    assert (await rig.done()).status == "processed"
    assert (await rig.event(event_id))["warnings"] == [
        "a: branch 'main' is not among dev, rel/*",
        "b: it has no trigger for push",
    ]


async def test_a_tag_starts_what_waits_for_tags(rig: Rig) -> None:
    sha = rig.local.commit({LOCK: lock(workflow("release", on=[TagTrigger(patterns=("v*",))]), workflow("ci"))})
    rig.local.git("tag", "v1")
    rig.local.push("main", "v1")
    await rig.push(sha, ref="refs/tags/v1")
    await rig.done()
    (run,) = await rig.runs()
    assert (run["workflow_name"], run["ref"], run["trigger_event"]) == ("release", "refs/tags/v1", "tag")
    assert await rig.pool.fetch("select * from workflow_registrations") == []


async def test_a_deleted_branch_starts_nothing(rig: Rig) -> None:
    event_id = await rig.push(ZERO, ref="refs/heads/gone", before="1" * 40)
    assert (await rig.done()).status == "ignored"
    assert (await rig.event(event_id))["error_message"] == "gone was deleted: there is no commit to run"
    assert await rig.runs() == []


@pytest.mark.parametrize("branch", ["main", "feature"])
async def test_skip_ci_starts_nothing_and_says_so(rig: Rig, branch: str) -> None:
    rig.local.commit({LOCK: lock(workflow("old"))})
    sha = rig.local.commit({LOCK: lock(workflow("new"))})
    rig.local.push(f"HEAD:refs/heads/{branch}")
    event_id = await rig.push(sha, ref=f"refs/heads/{branch}", message="Fix typo [skip ci]")
    assert (await rig.done()).status == "ignored"
    event = await rig.event(event_id)
    assert event["error_message"] == "the head commit's message asks for no run: [skip ci]"
    assert await rig.runs() == []
    registered = await rig.pool.fetch("select workflow_name from workflow_registrations")
    assert [row["workflow_name"] for row in registered] == (["new"] if branch == "main" else [])


async def test_path_filters_see_what_the_push_changed(rig: Rig) -> None:
    locked = lock(
        workflow("src", on=[PushTrigger(paths=("src/**",))]), workflow("docs", on=[PushTrigger(paths=("docs/**",))])
    )
    before = rig.local.commit({LOCK: locked})
    sha = rig.local.commit({"src/a.py": "1"})
    rig.local.push()
    await rig.push(sha, before=before)
    await rig.done()
    (run,) = await rig.runs()
    assert run["workflow_name"] == "src"
    assert run["event"]["changedFiles"] == ["src/a.py"]


async def test_unknown_changed_files_let_a_path_filter_pass_with_a_warning(rig: Rig) -> None:
    sha = rig.local.commit({LOCK: lock(workflow("src", on=[PushTrigger(paths=("src/**",))]))})
    rig.local.push()
    event_id = await rig.push(sha, before="1" * 40)
    await rig.done()
    assert len(await rig.runs()) == 1
    assert "not known which files changed" in (await rig.event(event_id))["warnings"][0]


async def test_a_new_branch_is_compared_with_where_it_left_the_default_branch(rig: Rig) -> None:
    locked = lock(
        workflow("src", on=[PushTrigger(paths=("src/**",))]), workflow("docs", on=[PushTrigger(paths=("docs/**",))])
    )
    rig.local.commit({LOCK: locked, "src/old.py": "1"})
    rig.local.git("checkout", "-q", "-b", "feature")
    sha = rig.local.commit({"docs/a.md": "1"})
    rig.local.push("main", "feature")
    await rig.push(sha, ref="refs/heads/feature")
    await rig.done()
    assert [run["workflow_name"] for run in await rig.runs()] == ["docs"]


async def test_what_cannot_run_remotely_yet_fails_at_birth_and_its_dependants_are_skipped(rig: Rig) -> None:
    deploy = job("deploy", environment="production")
    wf = workflow(jobs=[job("build"), deploy, job("after", needs=["deploy"]), job("late", needs=["build"])])
    sha = rig.local.commit({LOCK: lock(wf)})
    rig.local.push()
    await rig.push(sha)
    await rig.done()
    jobs = {row["job_name"]: row for row in await rig.jobs()}
    assert {name: row["status"] for name, row in jobs.items()} == {
        "build": "queued",
        "deploy": "failed",
        "after": "skipped",
        "late": "pending",
    }
    assert "environments and their secrets are not there yet" in jobs["deploy"]["error_message"]
    assert jobs["deploy"]["completed_at"] is not None
    assert [row["job_name"] for row in await rig.pool.fetch("select job_name from dispatch_queue")] == ["build"]
    assert (await rig.runs())[0]["status"] == "pending"


async def test_a_run_whose_jobs_all_failed_at_birth_has_ended(rig: Rig) -> None:
    wf = workflow(jobs=[job("deploy", environment="production"), job("after", needs=["deploy"])])
    sha = rig.local.commit({LOCK: lock(wf)})
    rig.local.push()
    await rig.push(sha)
    await rig.done()
    (run,) = await rig.runs()
    assert run["status"] == "failed"
    assert run["completed_at"] is not None


async def test_a_nul_character_in_an_event_does_not_stop_it(rig: Rig) -> None:
    sha = rig.local.commit({LOCK: lock(workflow())})
    rig.local.push()
    await rig.push(sha, message="bad \0 message")
    assert (await rig.done()).status == "processed"
    assert (await rig.runs())[0]["commit_message"] == "bad \ufffd message"


async def test_the_default_branch_registers_what_it_has_and_other_branches_do_not(rig: Rig) -> None:
    first = rig.local.commit({LOCK: lock(workflow("a", on=[PushTrigger(), ManualTrigger()]), workflow("b"))})
    rig.local.push()
    await rig.push(first)
    await rig.done()
    await rig.pool.execute("update workflow_registrations set disabled = true where workflow_name = 'a'")
    second = rig.local.commit({LOCK: lock(workflow("a", on=[ManualTrigger()]))})
    rig.local.push()
    await rig.push(second, before=first)
    await rig.done()
    branch = rig.local.commit({LOCK: lock(workflow("c"))})
    rig.local.push("HEAD:refs/heads/x")
    await rig.push(branch, ref="refs/heads/x")
    await rig.done()
    (row,) = await rig.pool.fetch("select * from workflow_registrations")
    assert (row["workflow_name"], row["trigger_types"], row["commit_sha"]) == ("a", ["manual"], second)
    assert row["disabled"]


async def test_a_default_branch_without_a_lock_file_registers_nothing_any_more(rig: Rig) -> None:
    first = rig.local.commit({LOCK: lock(workflow())})
    second = rig.local.commit({LOCK: None})
    rig.local.push()
    await rig.push(first)
    await rig.done()
    assert len(await rig.pool.fetch("select from workflow_registrations")) == 1
    await rig.push(second, before=first)
    assert (await rig.done()).status == "lockfile_missing"
    assert await rig.pool.fetch("select from workflow_registrations") == []


async def test_an_older_push_that_is_processed_late_does_not_undo_a_newer_one(rig: Rig) -> None:
    first = rig.local.commit({LOCK: lock(workflow("old"))})
    second = rig.local.commit({LOCK: lock(workflow("new"))})
    rig.local.push()
    early = await rig.push(first)
    await rig.pool.execute("update event_log set next_attempt_at = now() + interval '1 hour' where id = $1", early)
    await rig.push(second, before=first)
    await rig.done()
    await rig.pool.execute("update event_log set next_attempt_at = now() where id = $1", early)
    assert len((await rig.done()).run_ids) == 1
    rows = await rig.pool.fetch("select workflow_name from workflow_registrations")
    assert [row["workflow_name"] for row in rows] == ["new"]


async def test_a_lock_file_is_read_once_for_each_commit(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    blobs = rig.repositories.blobs

    async def counting(remote, sha, paths, *, max_bytes):  # type: ignore[no-untyped-def]
        read.append(sha)
        return await blobs(remote, sha, paths, max_bytes=max_bytes)

    monkeypatch.setattr(rig.repositories, "blobs", counting)
    sha = rig.local.commit({LOCK: lock(workflow(on=[PushTrigger(), TagTrigger()]))})
    rig.local.push()
    await rig.push(sha)
    await rig.push(sha, ref="refs/tags/v1")
    await rig.pipeline.run_once()
    assert set(read) == {sha}
    await rig.push(sha, ref="refs/tags/v2")
    await rig.done()
    assert len(read) <= 2
    assert len(await rig.runs()) == 3
