"""What a coordinator remembers of the lanes, by its own clock and with answers that the test gives."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest
from msgspec import Struct

from kici.engine.labels import Requirement
from kici.orchestrator.dispatch import open_lanes
from kici.orchestrator.dispatch.open_lanes import REMEMBERED_S, OpenLanes
from kici.orchestrator.store import label_sets, lanes, notify, queue_rules
from kici.orchestrator.store.database import Db
from kici.orchestrator.store.lanes import FROM_THE_START, Claimed, Lane

NO_DB = cast("Db", None)
LANE = Lane(1, "r")


class Idle(Struct, frozen=True):
    session_id: str = "s"
    labels: frozenset[str] = frozenset({"linux"})
    free: int = 2


class Database:
    """Stands for the statements: what is open, and how each was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open: dict[Lane, float] = {LANE: 10.0}
        self.asked: list[dict[Lane, float] | None] = []
        self.due: float | None = None
        monkeypatch.setattr(queue_rules, "pauses", self._nothing)
        monkeypatch.setattr(queue_rules, "caps", self._nothing)
        monkeypatch.setattr(lanes, "next_due_s", self._due)
        monkeypatch.setattr(lanes, "open_label_sets", self._sets)
        monkeypatch.setattr(lanes, "open_lanes", self._lanes)
        monkeypatch.setattr(label_sets, "read", self._read)

    async def _nothing(self, db: Db) -> list[object]:
        return []

    async def _due(self, db: Db) -> float | None:
        return self.due

    async def _sets(self, db: Db, known: object) -> list[int]:
        return [lane.label_set_id for lane in self.open]

    async def _read(self, db: Db, ids: set[int]) -> dict[int, Requirement]:
        return {number: Requirement(("linux",)) for number in ids}

    async def _lanes(self, db: Db, sets: object, known: dict[Lane, float] | None = None) -> dict[Lane, float]:
        self.asked.append(known)
        return dict(self.open)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    return Database(monkeypatch)


@pytest.fixture
async def memory(database: Database, clock: Clock) -> OpenLanes:
    """It has looked once."""
    made = OpenLanes(open_lanes.Settings(timedelta(seconds=5)), clock=clock)
    assert made.must_look([Idle()])
    await made.look(NO_DB, [Idle()])
    assert not made.must_look([Idle()])
    return made


def claimed(bound: float) -> Claimed:
    return Claimed("j", "r", 1, "s", "h", 1, LANE, bound, 0.0)


async def test_new_rows_are_looked_for_from_the_bounds_on(memory: OpenLanes, database: Database) -> None:
    wishes = memory.wishes([Idle()], [])
    memory.note(wishes, [claimed(20.0), claimed(21.0)])
    assert memory.bound(LANE) == 21.0
    memory.heard({notify.NEW_ROWS})
    await memory.look(NO_DB, [Idle()])
    assert database.asked == [None, {LANE: 21.0}]


async def test_anything_else_and_the_poll_look_without_bounds_and_set_them_anew(
    memory: OpenLanes, database: Database, clock: Clock
) -> None:
    memory.note(memory.wishes([Idle()], []), [claimed(21.0)])
    memory.heard(set())
    await memory.look(NO_DB, [Idle()])
    assert memory.bound(LANE) == 10.0
    clock.now += 6
    assert memory.must_look([Idle()])
    await memory.look(NO_DB, [Idle()])
    assert database.asked == [None, None, None]


async def test_what_is_due_later_is_looked_for_when_it_is(memory: OpenLanes, database: Database, clock: Clock) -> None:
    database.due = 2.0
    memory.heard({notify.NEW_ROWS})
    await memory.look(NO_DB, [Idle()])
    assert memory.again_in_s() == pytest.approx(2.0)
    clock.now += 2.0
    assert memory.must_look([Idle()])
    await memory.look(NO_DB, [Idle()])
    assert database.asked[-1] is None


async def test_it_asks_to_be_woken_for_the_next_look_without_bounds(memory: OpenLanes, clock: Clock) -> None:
    assert memory.again_in_s() == pytest.approx(5.0)
    clock.now += memory.again_in_s()
    assert memory.must_look([Idle()])


async def test_after_a_long_look_it_rests_whatever_is_due_or_heard(
    memory: OpenLanes, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slowly(db: Db) -> float:
        clock.now += 2.0
        return 1.0

    monkeypatch.setattr(lanes, "next_due_s", slowly)
    memory.heard(set())
    await memory.look(NO_DB, [Idle()])
    for _ in range(2):
        assert not memory.must_look([Idle()])
        assert memory.again_in_s() == pytest.approx(6.0)
        memory.heard(set())


async def test_a_lane_that_gives_less_than_was_wished_for_is_closed_until_something_is_heard(memory: OpenLanes) -> None:
    wishes = memory.wishes([Idle()], [])
    assert len(wishes) == 2
    memory.note(wishes, [claimed(20.0)])
    assert memory.wishes([Idle()], []) == []
    memory.heard({notify.NEW_ROWS})
    await memory.look(NO_DB, [Idle()])
    assert len(memory.wishes([Idle()], [])) == 2


async def test_a_closed_lane_keeps_its_bound_and_is_forgotten_in_the_end(
    memory: OpenLanes, database: Database, clock: Clock
) -> None:
    memory.note(memory.wishes([Idle()], []), [claimed(20.0)])
    database.open = {}
    for passed, bound in ((6.0, 20.0), (REMEMBERED_S, FROM_THE_START)):
        clock.now += passed
        memory.heard(set())
        await memory.look(NO_DB, [Idle()])
        assert memory.bound(LANE) == bound


async def test_an_agent_with_other_labels_makes_it_look_for_lanes_of_its_own(memory: OpenLanes) -> None:
    assert not memory.must_look([Idle(labels=frozenset({"windows"}))])
    await memory.look(NO_DB, [Idle(labels=frozenset({"windows"}))])
    assert memory.wishes([Idle(labels=frozenset({"windows"}))], []) == []


async def test_a_look_that_fails_is_made_again(
    memory: OpenLanes, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(db: Db) -> float | None:
        raise OSError("away")

    with monkeypatch.context() as patched:
        patched.setattr(lanes, "next_due_s", broken)
        memory.heard(set())
        with pytest.raises(OSError, match="away"):
            await memory.look(NO_DB, [Idle()])
    assert memory.must_look([Idle()])
    await memory.look(NO_DB, [Idle()])
    assert database.asked[-1] is None
