"""A lock file that cannot be used is told apart from one that is not there, and both from a forge that is away."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kici.engine import lockfile
from kici.orchestrator.pipeline.service import Settings
from tests.integration.pipeline.conftest import LOCK, ZERO, Rig
from tests.support.locks import job, lock, workflow


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "is not a JSON object"),
        (b"[]", "is not a JSON object"),
        (b'{"schemaVersion": 99, "workflows": []}', "schemaVersion 99, this orchestrator reads up to 1"),
        (b'{"schemaVersion": 1, "workflows": 3}', "does not follow its schema"),
        (b'{"schemaVersion": 16, "lockfileHash": "x"}', "TypeScript"),
        (b" " * (lockfile.MAX_BYTES + 1), "5,000,001 bytes"),
        (lock(workflow(jobs=[job("a", needs=["b"]), job("b", needs=["a"])])), "need each other in a circle"),
        (lock(workflow(jobs=[job("a", needs=["ghost"])])), "needs 'ghost'"),
    ],
)
async def test_a_corrupt_lock_file_makes_a_failed_run_that_says_what_is_wrong(
    rig: Rig, content: bytes, sentence: str
) -> None:
    sha = rig.local.commit({LOCK: content})
    rig.local.push()
    event_id = await rig.push(sha)
    assert (await rig.done()).status == "lockfile_corrupt"
    event = await rig.event(event_id)
    (run,) = await rig.runs()
    assert sentence in event["error_message"]
    assert (run["workflow_name"], run["status"], run["sha"]) == ("(unresolved workflow)", "failed", sha)
    assert run["failure_reason"] == event["error_message"]
    assert run["init_failure"] == {"scope": "run", "category": "lock_resolution", "message": event["error_message"]}
    assert run["completed_at"] is not None
    assert event["run_id"] == run["run_id"]
    assert await rig.jobs() == []


async def test_a_corrupt_lock_file_keeps_the_registrations_that_were_there(rig: Rig) -> None:
    good = rig.local.commit({LOCK: lock(workflow())})
    bad = rig.local.commit({LOCK: "{"})
    rig.local.push()
    for sha in (good, bad):
        await rig.push(sha)
        await rig.done()
    assert len(await rig.pool.fetch("select from workflow_registrations")) == 1


async def test_a_missing_lock_file_is_no_failure(rig: Rig) -> None:
    sha = rig.local.commit({"README": "x"})
    rig.local.push()
    event_id = await rig.push(sha)
    assert (await rig.done()).status == "lockfile_missing"
    assert "run `kici compile` and commit it" in (await rig.event(event_id))["error_message"]
    assert await rig.runs() == []


async def github_push(rig: Rig, sha: str, *, source: str = "hub") -> str:
    return await rig.deliver(
        await rig.github_source(source),
        "push",
        {
            "ref": "refs/heads/main",
            "before": ZERO,
            "after": sha,
            "created": True,
            "deleted": False,
            "forced": False,
            "commits": [],
            "head_commit": {"id": sha, "message": "change", "added": [], "removed": [], "modified": []},
            "repository": {
                "full_name": "team/app",
                "default_branch": "main",
                "clone_url": f"{rig.forge_url}/team/app.git",
            },
            "pusher": {"name": "ann"},
            "sender": {"login": "ann"},
        },
    )


async def test_a_forge_that_is_away_delays_the_event_and_it_runs_when_the_forge_is_back(rig: Rig) -> None:
    sha = rig.remote.commit({LOCK: lock(workflow())})
    rig.remote.push()
    event_id = await github_push(rig, sha)
    rig.forge.down = True
    assert (await rig.done()).status == "later"
    event = await rig.event(event_id)
    assert (event["status"], event["attempts"], event["claimed_by"]) == ("received", 1, None)
    assert "does not answer as it should" in event["error_message"]
    assert await rig.pipeline.run_once() == []

    rig.forge.down = False
    await rig.pool.execute("update event_log set next_attempt_at = now()")
    assert (await rig.done()).status == "processed"
    (run,) = await rig.runs()
    assert run["clone_url"] == f"{rig.forge_url}/team/app.git"
    assert (await rig.event(event_id))["error_message"] is None


async def test_the_pauses_between_attempts_grow_and_the_last_attempt_ends_the_event(rig: Rig) -> None:
    sha = rig.remote.commit({LOCK: lock(workflow())})
    rig.remote.push()
    event_id = await github_push(rig, sha)
    rig.forge.down = True
    rig.pipeline = rig.another(settings=Settings(attempts=3, first_delay=timedelta(seconds=10)))
    pauses = []
    for _ in range(3):
        assert (await rig.done()).status == "later"
        pauses.append(
            await rig.pool.fetchval("select round(extract(epoch from next_attempt_at - now())) from event_log")
        )
        await rig.pool.execute("update event_log set next_attempt_at = now()")
    assert [int(pause) for pause in pauses] == [10, 20, 40]
    assert (await rig.done()).status == "failed"
    event = await rig.event(event_id)
    assert event["error_message"].startswith("given up after 3 attempts: ")
    assert "503" in event["error_message"]


async def test_a_wrong_clone_token_says_what_to_check(rig: Rig) -> None:
    sha = rig.remote.commit({LOCK: lock(workflow())})
    rig.remote.push()
    event_id = await github_push(rig, sha)
    rig.forge.password = "changed"
    assert (await rig.done()).status == "later"
    assert "check the source's clone URL and token" in (await rig.event(event_id))["error_message"]


async def test_an_event_whose_source_was_removed_fails_with_that_sentence(rig: Rig) -> None:
    sha = rig.remote.commit({LOCK: lock(workflow())})
    rig.remote.push()
    event_id = await github_push(rig, sha)
    await rig.pool.execute("delete from sources")
    await rig.sources.load()
    assert (await rig.done()).status == "failed"
    assert "was removed" in (await rig.event(event_id))["error_message"]


async def test_a_body_that_the_forge_does_not_send_fails_with_the_place(rig: Rig) -> None:
    event_id = await rig.deliver(await rig.github_source(), "push", {"ref": "refs/heads/main"})
    assert (await rig.done()).status == "failed"
    assert "cannot be read" in (await rig.event(event_id))["error_message"]


async def test_an_event_that_concerns_nobody_is_ignored_with_the_reason(rig: Rig) -> None:
    event_id = await rig.deliver(await rig.github_source(), "ping", {"zen": "Keep it simple."})
    assert (await rig.done()).status == "ignored"
    assert "GitHub's ping" in (await rig.event(event_id))["error_message"]


async def test_two_hooks_that_tell_of_one_push_make_one_run(rig: Rig) -> None:
    sha = rig.remote.commit({LOCK: lock(workflow())})
    rig.remote.push()
    await github_push(rig, sha, source="hub")
    await rig.done()
    second = await github_push(rig, sha, source="hub-again")
    assert (await rig.done()).status == "duplicate"
    (run,) = await rig.runs()
    event = await rig.event(second)
    assert f"run {run['run_id']} has built" in event["error_message"]
    assert "remove one of the two hooks" in event["error_message"]


async def test_two_hooks_at_the_same_moment_make_one_run_too(rig: Rig) -> None:
    sha = rig.remote.commit({LOCK: lock(workflow())})
    rig.remote.push()
    await github_push(rig, sha, source="hub")
    await github_push(rig, sha, source="hub-again")
    done = await rig.pipeline.run_once()
    assert sorted(one.status for one in done) == ["duplicate", "processed"]
    assert len(await rig.runs()) == 1


async def test_one_hook_that_tells_twice_of_the_same_commit_is_two_pushes(rig: Rig) -> None:
    sha = rig.remote.commit({LOCK: lock(workflow())})
    rig.remote.push()
    for _ in range(2):
        await github_push(rig, sha)
        await rig.done()
    assert len(await rig.runs()) == 2


async def test_two_hooks_far_apart_are_two_pushes(rig: Rig) -> None:
    sha = rig.remote.commit({LOCK: lock(workflow())})
    rig.remote.push()
    await github_push(rig, sha, source="hub")
    await rig.done()
    await rig.pool.execute("update execution_runs set created_at = now() - interval '11 minutes'")
    await github_push(rig, sha, source="hub-again")
    assert (await rig.done()).status == "processed"
    assert len(await rig.runs()) == 2
