"""Slots of concurrency groups that are freed by other means than the end of who holds them."""

from __future__ import annotations

from msgspec import Struct

from kici.engine import concurrency as rule
from kici.orchestrator.errors import NotFound
from kici.orchestrator.lifecycle.end import cascade
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.locked import Locked
from kici.orchestrator.lifecycle.wakes import Wakes
from kici.orchestrator.store import concurrency
from kici.orchestrator.store.concurrency import Group, Slot
from kici.orchestrator.store.database import Db

DEFAULT_LIMITS = Limits()


class Released(Struct, frozen=True):
    slots: list[Slot]
    """That were taken from their holders."""
    started: list[Slot]
    """That were waiting, and hold a slot now."""
    wakes: Wakes
    """To be sent after the commit."""


class Repaired(Struct, frozen=True):
    ended: int
    """Holders and waiters that had ended."""
    idle: int
    """Waiters for whom a slot was free."""
    wakes: Wakes


async def release_by_hand(
    db: Db, group: Group, *, run_id: str | None = None, by: str, limits: Limits = DEFAULT_LIMITS
) -> Released:
    """Take the slots from all holders of the group, or from one run and its jobs, and hand them over.

    The holders run on, and hold nothing any more. Raises `NotFound` if there is no such holder.
    """
    await concurrency.lock_scopes(db, [group.scope])
    stands = await concurrency.standing(db, group)
    holders = {one.id for one in stands.holders if run_id in (None, one.run_id)}
    if not holders:
        who = f"run {run_id} does not hold" if run_id else "nobody holds"
        raise NotFound(f"{who} a slot of the concurrency group {group.name}")
    await concurrency.close(db, holders, released_by=by)
    locked = Locked(limits, waits=True)
    await cascade(db, locked, freed=[group])
    after = await concurrency.standing(db, group)
    started = {one.id for one in after.holders} - {one.id for one in stands.holders}
    return Released(
        [stands.slots[one] for one in sorted(holders)], [after.slots[one] for one in sorted(started)], locked.wakes
    )


async def repair(db: Db, limits: Limits, group: Group) -> Repaired | None:
    """Make the group what its runs and jobs say. None: somebody else has its scope, so it is looked after."""
    if not await concurrency.try_lock_scopes(db, [group.scope]):
        return None
    ended = await concurrency.ended_among(db, group)
    await concurrency.close(db, ended)
    stands = await concurrency.standing(db, group)
    idle = len(rule.hand_over(stands.holders, stands.waiters))
    locked = Locked(limits, waits=True)
    await cascade(db, locked, freed=[group])
    return Repaired(len(ended), idle, locked.wakes)
