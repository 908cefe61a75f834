"""A label that nothing here could offer is said when the run is made."""

from __future__ import annotations

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.pipeline.unservable import Labels
from kici.orchestrator.store.known_labels import KnownLabels
from tests.integration.pipeline.conftest import Rig
from tests.support import rows
from tests.support.locks import job, lock, workflow

LOCK = ".kici/kici.lock.json"
SENTENCE = (
    "nothing here could ever offer the label gpuu: no agent of the last 7 days, no agent token and no scaler names it"
    " (did you mean gpu?)"
)


async def push(rig: Rig) -> str:
    sha = rig.local.commit(
        {
            LOCK: lock(
                workflow(
                    "ci", jobs=[job("build"), job("train", runs_on=("linux", "gpuu")), job("use", needs=["train"])]
                )
            )
        }
    )
    rig.local.push()
    return await rig.push(sha)


@pytest.fixture(autouse=True)
async def an_agent(pool: Pool[Record]) -> None:
    """It left an hour ago and may come back."""
    await rows.add_session(pool, labels=["kici:os:linux"], closed_at=await pool.fetchval("select now()"))
    await pool.execute("insert into agent_tokens (token_hash, token_prefix, labels) values ('h', 'kat', '[\"gpu\"]')")


async def test_the_job_waits_and_the_delivery_says_it(rig: Rig) -> None:
    event_id = await push(rig)
    await rig.done()
    event = await rig.event(event_id)
    assert event["warnings"] == [f"ci: job train: {SENTENCE}"]
    assert {row["job_name"]: row["status"] for row in await rig.jobs()} == {
        "build": "queued",
        "train": "queued",
        "use": "pending",
    }


async def test_where_it_is_set_so_the_job_fails_at_once(rig: Rig) -> None:
    event_id = await push(rig)
    await rig.another(labels=Labels(KnownLabels(), fail=True)).run_once()
    assert {row["job_name"]: (row["status"], row["error_message"]) for row in await rig.jobs()} == {
        "build": ("queued", None),
        "train": ("failed", SENTENCE),
        "use": ("skipped", "train ended as failed (needed success)"),
    }
    assert (await rig.event(event_id))["warnings"] == [f"ci: job train: {SENTENCE}"]


async def test_what_starts_agents_on_demand_may_offer_it(rig: Rig) -> None:
    async def scaler(db: object) -> set[str]:
        return {"gpuu"}

    event_id = await push(rig)
    await rig.another(labels=Labels(KnownLabels(scaler), fail=True)).run_once()
    assert (await rig.event(event_id))["warnings"] == []


async def test_before_the_first_agent_the_labels_of_common_machines_are_no_surprise(pool: Pool[Record]) -> None:
    await pool.execute("delete from agent_sessions")
    async with pool.acquire() as db:
        known = await KnownLabels().among(db, {"kici:os:linux"})
    assert {"kici:os:linux", "kici:arch:arm64", "gpu"} <= known


async def test_a_label_that_has_come_since_is_found(pool: Pool[Record]) -> None:
    known = KnownLabels()
    async with pool.acquire() as db:
        assert "new" not in await known.among(db, set())
        await rows.add_session(pool, "b", labels=["new"])
        assert "new" in await known.among(db, {"new"})
