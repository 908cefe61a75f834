"""Who of those that name a concurrency group may run, who waits, and who has to make way.

A group has holders (each has a slot) and waiters, both in the order of their arrival. Every entry brings the `max` of
its own workflow; where they differ, the smallest of those that run together counts, so whoever says 1 runs alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

MAX_GROUP_CHARS = 400
"""Of a group's name after its template is expanded."""


class Policy(Struct, frozen=True, rename="camel"):
    """What an author says of a group, as it is stored. A newer coordinator may have stored more."""

    max: int = 1
    cancel_in_progress: bool = False
    pending: str = "keep-latest"
    """Or `queue`."""

    @property
    def keeps_latest(self) -> bool:
        return self.pending == "keep-latest"


class Entry(Struct, frozen=True):
    """A run or a job that holds a slot or waits for one."""

    id: str
    run_id: str
    """The same run's jobs never supersede each other."""
    max: int = 1
    keep_latest: bool = True
    """While it waits, the next one that waits takes its place; otherwise both wait in line."""
    stopping: bool = False
    """Asked to stop already; it holds its slot until it has ended."""


class Admission(Struct, frozen=True):
    """What an arrival means. All ids are of entries of other runs."""

    starts: bool
    """At once; otherwise it waits."""
    supersede: tuple[str, ...] = ()
    """Waiters whose place it takes."""
    stop: tuple[str, ...] = ()
    """Holders to be asked to stop; it waits until they have ended."""


def admit(
    holders: Sequence[Entry], waiters: Sequence[Entry], newcomer: Entry, *, cancel_in_progress: bool = False
) -> Admission:
    """Decide about an arrival. With `cancel_in_progress`, as many of the oldest holders are asked to stop as it takes.

    Nobody overtakes: while somebody waits that is not superseded, the newcomer waits behind, though a slot may be free
    for it.
    """
    superseded = [
        one.id for one in waiters if newcomer.keep_latest and one.keep_latest and one.run_id != newcomer.run_id
    ]
    ahead = [one for one in waiters if one.id not in superseded]
    if not ahead and _fits(newcomer, holders):
        return Admission(True, tuple(superseded))
    stop = _in_the_way(holders, ahead, newcomer) if cancel_in_progress else ()
    return Admission(False, tuple(superseded), stop)


def hand_over(holders: Sequence[Entry], waiters: Sequence[Entry]) -> tuple[str, ...]:
    """Waiters that get a slot now, strictly in their order: who does not fit holds up those behind."""
    active = list(holders)
    granted = []
    for one in waiters:
        if not _fits(one, active):
            break
        active.append(one)
        granted.append(one.id)
    return tuple(granted)


def _fits(one: Entry, active: Iterable[Entry]) -> bool:
    together = [one, *active]
    return len(together) <= min(entry.max for entry in together)


def _in_the_way(holders: Sequence[Entry], ahead: Sequence[Entry], newcomer: Entry) -> tuple[str, ...]:
    """Those who are stopping already make room first; then the oldest ones of other runs, no more than needed."""
    stay = [one for one in holders if not one.stopping]
    stop = []
    for one in [one for one in stay if one.run_id != newcomer.run_id]:
        if _fits(newcomer, (*stay, *ahead)):
            break
        stay.remove(one)
        stop.append(one.id)
    return tuple(stop)
