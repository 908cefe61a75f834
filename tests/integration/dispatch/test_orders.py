from __future__ import annotations

from asyncpg import Pool, Record

from kici.orchestrator.dispatch import orders
from kici.orchestrator.dispatch.orders import Place
from kici.orchestrator.store import jobs
from tests.support.locks import job
from tests.support.runs import make_run


async def test_a_job_knows_its_place_in_its_fan_out_and_where_its_run_is_shown(pool: Pool[Record]) -> None:
    made = await make_run(pool, [job("lint"), job("test", matrix={"v": ("1", "2", "3")})])
    async with pool.acquire() as db:
        found = await jobs.orders(db, made.ids.values())
    contexts = {one.job_name: orders.context(one, 1, Place("http://kici.test/")) for one in found.values()}
    places = {name: (context.fanout_index, context.fanout_total) for name, context in contexts.items()}
    assert places == {"lint": (0, 1), "test (1)": (0, 3), "test (2)": (1, 3), "test (3)": (2, 3)}
    assert contexts["lint"].run_url == f"http://kici.test/api/v1/admin/runs/{made.run_id}"
