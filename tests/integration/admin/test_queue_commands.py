"""`kici-admin queue` as operators run it: a process of its own against a running server and a real queue."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
from asyncpg import Pool, Record
from msgspec import Struct

from kici.orchestrator.api import queue, queue_rules, runs
from kici.orchestrator.dispatch.explain import explain
from kici.orchestrator.http import application
from kici.orchestrator.identity.access import Access
from kici.orchestrator.identity.tokens import create_admin
from kici.orchestrator.lifecycle.cancel import cancel_run
from kici.orchestrator.store import notify
from tests.support import rows
from tests.support.intake_server import RecordingNotifier
from tests.support.locks import job
from tests.support.runs import Made, make_run
from tests.support.services import until
from tests.support.serving import serving

Run: TypeAlias = "Callable[..., asyncio.Future[subprocess.CompletedProcess[str]]]"


class Server(Struct):
    pool: Pool[Record]
    notifier: RecordingNotifier
    url: str = ""

    async def token(self, role: str) -> str:
        async with self.pool.acquire() as db:
            return (await create_admin(db, label=f"test {role}", role=role)).token


@pytest.fixture
async def server(pool: Pool[Record]) -> AsyncIterator[Server]:
    access, notifier = Access(pool), RecordingNotifier(pool)
    routes: list[Any] = [
        *queue.routes(pool, access, explain=explain),
        *queue_rules.routes(pool, access, notifier, default_cap=9),
        *runs.routes(pool, access, notifier, cancel_run=cancel_run, explain=explain),
    ]
    async with serving(application(routes)) as url:
        yield Server(pool, notifier, url)


@pytest.fixture
async def admin(server: Server, tmp_path: Path) -> Run:
    env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ} | {
        "HOME": str(tmp_path),
        "KICI_ADMIN_URL": server.url,
        "KICI_ADMIN_TOKEN": await server.token("admin"),
        "no_proxy": "*",
    }

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kici.admin.main", "queue", *arguments],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return lambda *arguments: asyncio.ensure_future(asyncio.to_thread(command, *arguments))


@pytest.fixture
async def made(server: Server) -> Made:
    return await make_run(server.pool, [job("build"), job("test", needs=["build"])], repo="team/app")


async def send(server: Server, made: Made, name: str) -> str:
    """As if an agent had taken it."""
    session = await rows.add_session(server.pool)
    await server.pool.execute(
        "update dispatch_queue set session_id = $2, attempt = 1, claimed_at = now() where id = $1", made[name], session
    )
    return session


async def test_the_list_is_a_table_or_json_and_can_be_narrowed(admin: Run, made: Made) -> None:
    shown = await admin("list")
    header, _, row = shown.stdout.splitlines()
    assert header.split() == ["ID", "RUN", "WORKFLOW", "JOB", "STATUS", "CREATED", "REASON"]
    assert row.split()[:5] == [made["build"][:8], made.run_id[:8], "ci", "build", "pending"]
    assert "no agent is connected" in row
    for narrowed in (
        ("--status", "dispatched"),
        ("--status-not-in", "pending"),
        ("--job-name", "x"),
        ("--job-name-not-like", "bu%"),
        ("--workflow-name", "x"),
        ("--created-after", "2999-01-01"),
    ):
        assert (await admin("list", *narrowed)).stdout == "No queue entries found.\n", narrowed
    (entry,) = json.loads((await admin("list", "--job-name-prefix", "bu", "--run", made.run_id, "--json")).stdout)[
        "entries"
    ]
    assert (entry["jobId"], entry["repository"]) == (made["build"], "team/app")


async def test_show_gives_every_column_but_the_token(admin: Run, server: Server, made: Made) -> None:
    await server.pool.execute("update dispatch_queue set job_token_hash = 'never shown'")
    shown = (await admin("show", made["build"])).stdout
    assert "labels: kici:os:linux\n" in shown
    assert "repository: team/app\n" in shown
    assert "never shown" not in shown
    gone = await admin("show", made["test"])
    assert (gone.returncode, gone.stderr) == (1, f"error: HTTP 404: queue: entry not found (id={made['test']})\n")


async def test_explain_says_the_same_as_the_list_and_the_run(admin: Run, server: Server, made: Made) -> None:
    told = json.loads((await admin("explain", made["build"][:8], "--json")).stdout)
    assert (told["jobId"], told["waits"], told["status"]) == (made["build"], True, "queued")
    assert json.loads((await admin("list", "--json")).stdout)["entries"][0]["reason"] == told["reason"]
    token = await server.token("developer")
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {token}"}, trust_env=False) as client:
        jobs = (await client.get(f"{server.url}/api/v1/admin/runs/{made.run_id}/jobs")).json()["jobs"]
    assert {one["jobName"]: one["waitingReason"] for one in jobs} == {
        "build": told["reason"],
        "test": "waiting for job build",
    }
    assert "  waiting for job build\n" in (await admin("explain", made["test"])).stdout


async def test_explain_of_what_does_not_wait_says_so(admin: Run, server: Server, made: Made) -> None:
    await server.pool.execute(
        """
        update execution_jobs set status = 'running', attempt = 1, agent_id = 'box', started_at = now()
         where job_id = $1
        """,
        made["build"],
    )
    assert "it does not wait: attempt 1 runs on agent box since 20" in (await admin("explain", made["build"])).stdout
    nobody = await admin("explain", "0" * 8)
    assert (nobody.returncode, nobody.stderr) == (1, "error: HTTP 404: there is no job whose id begins with 00000000\n")
    several = await admin("explain", "")
    assert several.returncode == 1


async def test_pause_and_resume(admin: Run, server: Server, made: Made) -> None:
    assert "everything" in (await admin("pause", "--reason", "new rack")).stdout
    assert "label kici:os:linux" in (await admin("pause", "--label", "linux")).stdout
    paused = json.loads((await admin("pause", "--repository", "team/app", "--json")).stdout)["pauses"]
    assert [(one["scope"], one["value"], one["reason"]) for one in paused] == [
        ("all", "", "new rack"),
        ("label", "kici:os:linux", ""),
        ("repository", "team/app", ""),
    ]
    assert paused[0]["createdBy"] == "admin_token:test admin"
    assert server.notifier.announced == [notify.QUEUE] * 3
    stats = json.loads((await admin("stats", "--json")).stdout)
    assert len(stats["pauses"]) == 3
    assert stats["lanes"][0]["paused"]
    for which in ((), ("--label", "linux"), ("--repository", "team/app")):
        assert (await admin("resume", *which)).returncode == 0
    again = await admin("resume")
    assert (again.returncode, again.stderr) == (1, "error: HTTP 404: the queue is not paused\n")
    for wrong in (("pause", "--label", "a", "--repository", "b"), ("resume", "--label", "a", "--repository", "b")):
        assert (await admin(*wrong)).returncode == 2
    assert "is a pattern" in (await admin("pause", "--label", "gpu-*")).stderr


async def test_caps(admin: Run, made: Made) -> None:
    shown = await admin("cap")
    assert (shown.stdout, shown.stderr) == ("", "No repository has a cap of its own.\nEvery other repository: 9\n")
    assert re.search(r"team/app +3 +admin_token:test admin", (await admin("cap", "team/app", "3")).stdout)
    stats = json.loads((await admin("stats", "--json")).stdout)
    assert {one["repository"]: one["cap"] for one in stats["repositories"]} == {"team/app": 3}
    assert stats["defaultCap"] == 9
    assert json.loads((await admin("cap", "team/app", "--none", "--json")).stdout)["caps"] == []
    assert "has no cap of its own" in (await admin("cap", "team/app", "--none")).stderr
    for wrong in (("cap", "a"), ("cap", "a", "0"), ("cap", "a", "1", "--none")):
        assert (await admin(*wrong)).returncode == 2, wrong


async def test_stats_count_by_state_repository_and_labels(admin: Run, server: Server, made: Made) -> None:
    other = await make_run(server.pool, [job("a"), job("b", runs_on=("gpu",))], repo="team/other")
    await send(server, other, "a")
    stats = json.loads((await admin("stats", "--json")).stdout)
    assert (stats["pending"], stats["dispatched"], stats["running"], stats["pendingIsEstimate"]) == (2, 1, 0, False)
    assert [(one["labels"], one["hasAgent"]) for one in stats["labelSets"]] == [
        (["gpu"], False),
        (["kici:os:linux"], True),
    ]
    assert [(one["repository"], one["pending"], one["running"]) for one in stats["repositories"]] == [
        ("team/app", 1, 0),
        ("team/other", 1, 1),
    ]
    shown = (await admin("stats")).stdout
    assert "Waiting:     2, the oldest for" in shown
    assert re.search(r"gpu +1 +\d+ s +NONE", shown)


async def test_drain_waits_until_nothing_runs_or_says_what_does(admin: Run, server: Server, made: Made) -> None:
    await send(server, made, "build")
    late = await admin("drain", "--timeout", "0.1", "--json")
    assert late.returncode == 1
    told = json.loads(late.stdout)
    assert (told["drained"], [one["jobId"] for one in told["running"]]) == (False, [made["build"]])
    assert await server.pool.fetchval("select scope from queue_pauses") == "all"
    draining = admin("drain")

    async def paused_again() -> bool:
        return len(server.notifier.announced) == 2

    await until(paused_again)
    await server.pool.execute("delete from dispatch_queue")
    done = await draining
    assert (done.returncode, done.stdout.split(",")[0]) == (0, "Nothing runs")


async def test_who_may_only_read_changes_nothing(server: Server) -> None:
    for role, status in (("auditor", 403), ("developer", 403), ("admin", 200)):
        token = await server.token(role)
        async with httpx.AsyncClient(
            base_url=f"{server.url}/api/v1/admin/queue",
            headers={"authorization": f"Bearer {token}"},
            trust_env=False,
        ) as client:
            for path, body in (
                ("/pause", {"scope": "all"}),
                ("/resume", {"scope": "all"}),
                ("/caps", {"repository": "a", "maxRunning": 1}),
            ):
                assert (await client.post(path, json=body)).status_code == status, (role, path)
            read = 403 if role == "developer" else 200
            for path in ("/stats", "/pauses", "/caps"):
                assert (await client.get(path)).status_code == read, (role, path)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/pause", {"scope": "some"}),
        ("/pause", {"scope": "all", "value": "x"}),
        ("/pause", {"scope": "label"}),
        ("/pause", {"scope": "all", "reason": "x" * 501}),
        ("/caps", {"repository": "", "maxRunning": 1}),
        ("/caps", {"repository": "a", "maxRunning": 0}),
    ],
)
async def test_what_makes_no_sense_is_refused_with_a_sentence(server: Server, path: str, body: dict[str, Any]) -> None:
    token = await server.token("owner")
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {token}"}, trust_env=False) as client:
        answer = await client.post(f"{server.url}/api/v1/admin/queue{path}", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("Validation error: ")
