from __future__ import annotations

from asyncpg import Pool, Record
from msgspec.structs import replace

from kici.engine.events import Event, EventType
from kici.orchestrator.dispatch import orders
from kici.orchestrator.dispatch.contract import Login
from kici.orchestrator.dispatch.orders import Place
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.store import jobs
from kici.orchestrator.store.lanes import Claimed, Lane
from kici.wire.agent import Dispatch, orchestrator_frames
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


async def test_an_agent_may_keep_for_trusted_jobs_what_a_push_is_about_and_not_what_a_pull_request_brings(
    pool: Pool[Record],
) -> None:
    made = await make_run(pool, [job("lint")])
    async with pool.acquire() as db:
        (one,) = (await jobs.orders(db, made.ids.values())).values()
    claim = Claimed(one.job_id, one.run_id, 1, "session", "hash", 1, Lane(1, "me/repo"), 0.0, 0.0)
    trusted = {}
    for kind in (EventType.PUSH, EventType.PULL_REQUEST, EventType.COMMENT):
        event = Event(kind, branch="main", sha="1" * 40, repo="me/repo", pr_number=0 if kind is EventType.PUSH else 7)
        about = replace(one, event=event)
        frame = orders.dispatch(about, claim, "kjt", Login(), limits=Limits(), place=Place(""))
        body = orchestrator_frames.decode(frame).body
        assert isinstance(body, Dispatch)
        trusted[kind] = body.checkout.trusted
    assert trusted == {EventType.PUSH: True, EventType.PULL_REQUEST: False, EventType.COMMENT: False}
