"""Since which commit files count as changed, from a push to what `kici runs show` says."""

from __future__ import annotations

import pytest

from kici.engine.lockfile import LockRule, PushTrigger
from kici.orchestrator.store.views import runs as run_views
from tests.integration.pipeline.conftest import LOCK, Rig
from tests.support.locks import job, lock, workflow

LOCKED = lock(
    workflow("src", on=[PushTrigger(paths=("src/**",))]), workflow("docs", on=[PushTrigger(paths=("docs/**",))])
)


async def ended(rig: Rig, workflow_name: str, status: str) -> None:
    await rig.pool.execute(
        "update execution_runs set status = $2 where workflow_name = $1 and status = 'pending'", workflow_name, status
    )


async def started(rig: Rig, sha: str, before: str, branch: str = "main") -> list[str]:
    """Workflows that a push starts."""
    known = {run["run_id"] for run in await rig.runs()}
    await rig.push(sha, before=before, ref=f"refs/heads/{branch}")
    assert (await rig.done()).status == "processed"
    return [run["workflow_name"] for run in await rig.runs() if run["run_id"] not in known]


async def test_a_check_that_failed_is_not_skipped_by_the_next_push(rig: Rig) -> None:
    first = rig.local.commit({LOCK: LOCKED})
    second = rig.local.commit({"src/a.py": "1"})
    third = rig.local.commit({"docs/a.md": "1"})
    fourth = rig.local.commit({"README": "1"})
    rig.local.push()
    assert await started(rig, second, first) == ["src"]
    await ended(rig, "src", "failed")
    assert await started(rig, third, second) == ["docs", "src"]
    await ended(rig, "docs", "success")
    await ended(rig, "src", "success")
    assert await started(rig, fourth, third) == []


async def test_each_workflow_has_its_own_base_and_shows_it(rig: Rig) -> None:
    first = rig.local.commit({LOCK: LOCKED})
    second = rig.local.commit({"src/a.py": "1", "docs/a.md": "1"})
    third = rig.local.commit({"src/b.py": "1"})
    fourth = rig.local.commit({"docs/b.md": "1"})
    rig.local.push()
    assert await started(rig, second, first) == ["docs", "src"]
    await ended(rig, "docs", "success")
    await ended(rig, "src", "success")
    assert await started(rig, third, second) == ["src"]
    await ended(rig, "src", "failed")
    assert await started(rig, fourth, third) == ["docs", "src"]
    newest = {run["workflow_name"]: run for run in await rig.runs()}
    assert newest["docs"]["event"]["changedFiles"] == ["docs/b.md", "src/b.py"]
    assert newest["src"]["event"]["changedBase"] == second
    async with rig.pool.acquire() as db:
        shown = await run_views.one(db, str(newest["src"]["run_id"]))
    assert shown
    assert shown.changed == f"2 files changed since {second[:7]} (the last successful run on main)"
    assert shown.changed_base == second


async def test_a_force_push_builds_what_differs_from_the_last_success(rig: Rig) -> None:
    first = rig.local.commit({LOCK: LOCKED, "src/a.py": "1"})
    green = rig.local.commit({"src/a.py": "2"})
    rig.local.push()
    assert await started(rig, green, first) == ["src"]
    await ended(rig, "src", "success")
    rig.local.git("reset", "-q", "--hard", first)
    forced = rig.local.commit({"docs/a.md": "1"})
    rig.local.push()
    # The new commit touches docs/ alone, but src/a.py is another one than what was checked.
    assert await started(rig, forced, green) == ["docs", "src"]


async def test_what_the_sender_says_about_files_is_never_believed(rig: Rig) -> None:
    sha = rig.local.commit({LOCK: LOCKED})
    rig.local.push()
    source = await rig.local_source()
    body = {
        "repository": "local/app",
        "default_branch": "main",
        "ref": "refs/heads/main",
        "before": "0" * 40,
        "after": sha,
        "commit": sha,
        "message": "",
        "pusher": "ann",
        "changed_files": ["docs/lie.md"],
    }
    from kici.forges.local.delivery import PUSH

    event_id = await rig.deliver(source, PUSH, body)
    await rig.done()
    assert [run["workflow_name"] for run in await rig.runs()] == ["docs", "src"]
    warnings = (await rig.event(event_id))["warnings"]
    assert "not known which files changed (main is new)" in warnings[0]


async def test_a_push_that_starts_nothing_says_since_which_commit_nothing_changed(rig: Rig) -> None:
    first = rig.local.commit({LOCK: LOCKED})
    second = rig.local.commit({"README": "1"})
    rig.local.push()
    event_id = await rig.push(second, before=first)
    await rig.done()
    remarks = (await rig.event(event_id))["warnings"]
    assert f"1 file changed since {first[:7]} (what main was before the push)" in remarks[0]


async def test_a_job_that_asks_is_enough_for_git_to_be_asked(rig: Rig) -> None:
    rule = LockRule("src changed", changed=("src/**",))
    locked = lock(workflow("ci", jobs=[job("a", rules=(rule,)), job("b")]))
    first = rig.local.commit({LOCK: locked})
    second = rig.local.commit({"src/a.py": "1"})
    rig.local.push()
    await started(rig, second, first)
    (run,) = await rig.runs()
    assert run["event"]["changedFiles"] == ["src/a.py"]


@pytest.mark.parametrize("same", [True, False])
async def test_the_last_success_is_looked_for_in_the_same_repository_only(rig: Rig, same: bool) -> None:
    first = rig.local.commit({LOCK: LOCKED})
    green = rig.local.commit({"src/a.py": "1"})
    head = rig.local.commit({"docs/a.md": "1"})
    rig.local.push()
    await started(rig, green, first)
    await rig.pool.execute(
        "update execution_runs set status = 'success', routing_key = 'other', clone_url = $1",
        "/git/local/app" if same else "https://elsewhere/local/app",
    )
    assert await started(rig, head, first) == (["docs"] if same else ["docs", "src"])
