from __future__ import annotations

import gzip

from asyncpg import Pool, Record

from kici.orchestrator.pipeline.payloads import MovePayloads, Pass, Settings, object_key
from tests.integration.pipeline.conftest import Rig


class Objects(dict[str, bytes]):
    away = False

    async def put(self, key: str, data: bytes) -> None:
        if self.away:
            raise OSError("no space left on device")
        self[key] = data


async def bodies(pool: Pool[Record]) -> int:
    count: int = await pool.fetchval("select count(*) from event_payloads")
    return count


async def test_the_body_of_a_processed_event_moves_to_the_object_store(rig: Rig) -> None:
    event_id = await rig.deliver(await rig.github_source(), "star", b'{"a": 1}')
    objects = Objects()
    move = MovePayloads(rig.pool, objects, Settings())
    assert await move.run_once() == Pass(moved=0, failed=0)
    await rig.done()
    assert await move.run_once() == Pass(moved=1, failed=0)
    event = await rig.event(event_id)
    assert event["payload_key"] == object_key("default", event["delivery_id"])
    assert "/" not in event["payload_key"].removeprefix("event-log/default/")
    assert gzip.decompress(objects[event["payload_key"]]) == b'{"a": 1}'
    assert await bodies(rig.pool) == 0


async def test_a_body_stays_until_the_object_store_has_it(rig: Rig) -> None:
    event_id = await rig.deliver(await rig.github_source(), "star", b"{}")
    await rig.done()
    objects = Objects()
    objects.away = True
    move = MovePayloads(rig.pool, objects, Settings())
    assert await move.run_once() == Pass(moved=0, failed=1)
    assert await bodies(rig.pool) == 1
    assert (await rig.event(event_id))["payload_key"] is None
    objects.away = False
    assert await move.run_once() == Pass(moved=1, failed=0)
