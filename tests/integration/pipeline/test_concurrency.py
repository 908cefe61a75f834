"""From the concurrency that an author writes to who waits for whom."""

from __future__ import annotations

from typing import Any

from kici.engine.lockfile import LockConcurrency, PrTrigger
from tests.integration.pipeline.conftest import LOCK, Rig
from tests.support.locks import job, lock, workflow


async def push(rig: Rig, text: str) -> None:
    sha = rig.local.commit({"file": text})
    rig.local.push()
    await rig.push(sha)
    await rig.done()


async def pull_request(rig: Rig, number: int, head: str, base: str, *, branch: str = "feature") -> None:
    await rig.deliver(
        await rig.github_source(),
        "pull_request",
        {
            "action": "synchronize",
            "number": number,
            "pull_request": {
                "title": "Change",
                "head": {"ref": branch, "sha": head, "repo": {"full_name": "mallory/app"}},
                "base": {"ref": "main", "sha": base, "repo": {"full_name": "team/app"}},
            },
            "repository": {
                "full_name": "team/app",
                "clone_url": f"{rig.forge_url}/team/app.git",
                "default_branch": "main",
            },
            "sender": {"login": "mallory"},
        },
    )
    await rig.done()


async def statuses(rig: Rig) -> list[str]:
    return [row["status"] for row in await rig.pool.fetch("select status from execution_runs order by created_at")]


async def queued_jobs(rig: Rig) -> int:
    return int(await rig.pool.fetchval("select count(*) from dispatch_queue"))


async def test_a_newer_push_supersedes_the_older_run_of_its_branch(rig: Rig) -> None:
    wf = workflow(jobs=[job("a")], concurrency=LockConcurrency("{workflow}-{branch}", cancel_in_progress=True))
    rig.local.commit({LOCK: lock(wf)})
    await push(rig, "1")
    await push(rig, "2")
    older, newer = await rig.pool.fetch("select * from execution_runs order by created_at")
    assert (older["status"], newer["status"]) == ("cancelled", "pending")
    assert older["failure_reason"] == f"superseded by run {newer['run_id']} in concurrency group ci-main"
    assert newer["concurrency_scope"] == f"{newer['routing_key']}::local/app"
    assert await queued_jobs(rig) == 1
    assert ("kici_runs", older["run_id"]) in rig.notified


async def test_two_workflows_of_one_push_that_name_one_group_run_one_after_the_other(rig: Rig) -> None:
    both: dict[str, Any] = {"concurrency": LockConcurrency("release", pending="queue"), "jobs": [job("a")]}
    rig.local.commit({LOCK: lock(workflow("one", **both), workflow("two", **both))})
    await push(rig, "1")
    rows = await rig.pool.fetch("select status from concurrency_groups order by arrival")
    assert [row["status"] for row in rows] == ["active", "queued"]
    assert await queued_jobs(rig) == 1


async def test_a_group_whose_template_has_no_value_fails_the_run_with_the_sentence(rig: Rig) -> None:
    rig.local.commit({LOCK: lock(workflow(concurrency=LockConcurrency("ci-{pr}", cancel_in_progress=True)))})
    await push(rig, "1")
    (run,) = await rig.runs()
    assert (run["status"], run["init_failure"]["category"]) == ("failed", "environment_rules")
    assert run["failure_reason"] == ("the concurrency of workflow 'ci': template 'ci-{pr}': this event has no pr")
    assert await rig.jobs() == []
    assert await rig.pool.fetchval("select count(*) from concurrency_groups") == 0


async def test_a_newer_push_to_a_pull_request_supersedes_its_own_older_run_only(rig: Rig) -> None:
    wf = workflow(on=[PrTrigger()], jobs=[job("a")], concurrency=LockConcurrency("ci-{pr}", cancel_in_progress=True))
    base = rig.remote.commit({LOCK: lock(wf)})
    rig.remote.git("checkout", "-q", "-b", "feature")
    heads = [rig.remote.commit({"file": text}) for text in "123"]
    rig.remote.push("main", "feature")
    await pull_request(rig, 7, heads[0], base)
    await pull_request(rig, 8, heads[1], base)
    await pull_request(rig, 7, heads[2], base)
    assert await statuses(rig) == ["cancelled", "pending", "pending"]


async def test_an_untrusted_pull_request_whatever_its_branch_is_called_stays_out_of_the_repositorys_groups(
    rig: Rig,
) -> None:
    deploy = LockConcurrency("deploy-{branch}", cancel_in_progress=True)
    wf = workflow(on=[PrTrigger()], jobs=[job("a", concurrency=deploy)], concurrency=deploy)
    base = rig.remote.commit({LOCK: lock(wf)})
    rig.remote.git("checkout", "-q", "-b", "feature")
    head = rig.remote.commit({"file": "1"})
    rig.remote.push("main", "feature")
    await pull_request(rig, 7, head, base, branch="main")
    await pull_request(rig, 8, head, base, branch="main")
    rows = await rig.pool.fetch("select routing_key, group_key, status from concurrency_groups order by arrival")
    assert [tuple(row) for row in rows] == [
        ("github:hub::team/app::pr-7", "deploy-main", "active"),
        ("github:hub::team/app::pr-8", "deploy-main", "active"),
    ]
    assert await queued_jobs(rig) == 2
