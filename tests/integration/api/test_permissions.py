"""What a workflow's `permissions` keep from its jobs, whatever their agent asks for."""

from __future__ import annotations

import httpx
import pytest
from asyncpg import Pool, Record

from tests.support import rows
from tests.support.api_server import JOB_TOKEN, Parts, client

ACTS = {
    "upload artifacts": ("PUT", "artifacts/dist", {}),
    "download artifacts": ("GET", "artifacts/none", {}),
    "save caches": ("PUT", "caches", {"key": "uv"}),
    "restore caches": ("GET", "caches", {"key": "other"}),
    "save caches: known": ("GET", "caches/known", {"key": "uv"}),
    "restore caches: check": ("POST", "caches/check", {"entry": "0f0f0f0f-0000-0000-0000-000000000001"}),
    "emit events": ("POST", "events", {}),
    "hand over secret outputs": ("PUT", "secret-outputs/TOKEN", {}),
}


async def answers(
    pool: Pool[Record], parts: Parts, job: rows.Job, permissions: dict[str, str] | None
) -> dict[str, httpx.Response]:
    await pool.execute(
        """
        update execution_jobs set definition = definition || jsonb_build_object('permissions', $2::jsonb)
         where job_id = $1
        """,
        job.job_id,
        permissions,
    )
    found = {}
    async with client(parts.url, JOB_TOKEN) as agent:
        for act, (method, path, query) in ACTS.items():
            body = {"json": {"name": "built", "key": "0:1"}} if path == "events" else {"content": b"value"}
            found[act] = await agent.request(
                method,
                f"/api/v1/agent/jobs/{job.job_id}/{path}",
                params={"attempt": 1, **query},
                **body,
            )
    return found


@pytest.mark.parametrize(
    ("permissions", "allowed"),
    [
        (None, set(ACTS)),
        ({}, set()),
        ({"artifacts": "read"}, {"download artifacts"}),
        ({"artifacts": "write"}, {"download artifacts", "upload artifacts"}),
        ({"caches": "read"}, {"restore caches", "restore caches: check"}),
        ({"caches": "write"}, {act for act in ACTS if "caches" in act}),
        ({"events": "write", "of a newer version": "write"}, {"emit events"}),
        ({"secret_outputs": "write"}, {"hand over secret outputs"}),
        ({"secret_outputs": "admin"}, set()),
    ],
)
async def test_an_attempt_may_do_what_its_workflow_says_and_else_is_told_what_it_would_have_to_say(
    pool: Pool[Record], parts: Parts, job: rows.Job, permissions: dict[str, str] | None, allowed: set[str]
) -> None:
    found = await answers(pool, parts, job, permissions)
    refused = {
        act: one.json()["error"] for act, one in found.items() if one.status_code == 403 and "permission" in one.text
    }
    assert set(ACTS) - set(refused) == allowed
    for act, error in refused.items():
        assert error.startswith(
            f"the workflow 'ci' gives its jobs no permission to {act.partition(':')[0]}: permissions={{"
        ), error
