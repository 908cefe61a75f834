from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from asyncpg import Pool, Record

from kici.orchestrator.errors import Unavailable
from kici.orchestrator.objects.contract import Objects
from kici.orchestrator.objects.open_objects import open_objects
from kici.orchestrator.pipeline.payloads import MovePayloads, Pass, object_key
from kici.orchestrator.pipeline.payloads import Settings as PayloadSettings
from kici.orchestrator.settings import Settings
from tests.integration.pipeline.conftest import Rig


class Full:
    """A store that takes nothing."""

    async def put(self, key: str, data: bytes) -> None:
        raise Unavailable("no space left on device")


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return open_objects(Settings(storage_fs_path=tmp_path / "objects"))


async def bodies(pool: Pool[Record]) -> int:
    count: int = await pool.fetchval("select count(*) from event_payloads")
    return count


async def test_the_body_of_a_processed_event_moves_to_the_object_store(rig: Rig, objects: Objects) -> None:
    event_id = await rig.deliver(await rig.github_source(), "star", b'{"a": 1}')
    move = MovePayloads(rig.pool, objects, PayloadSettings())
    assert await move.run_once() == Pass(moved=0, failed=0)
    await rig.done()
    assert await move.run_once() == Pass(moved=1, failed=0)
    event = await rig.event(event_id)
    assert event["payload_key"] == object_key("default", event_id)
    assert gzip.decompress(await objects.get(event["payload_key"])) == b'{"a": 1}'
    assert await bodies(rig.pool) == 0


async def test_a_body_stays_until_the_object_store_has_it(rig: Rig, objects: Objects) -> None:
    event_id = await rig.deliver(await rig.github_source(), "star", b"{}")
    await rig.done()
    assert await MovePayloads(rig.pool, Full(), PayloadSettings()).run_once() == Pass(moved=0, failed=1)
    assert await bodies(rig.pool) == 1
    assert (await rig.event(event_id))["payload_key"] is None
    assert await MovePayloads(rig.pool, objects, PayloadSettings()).run_once() == Pass(moved=1, failed=0)
