"""The labels that something here offers, has offered, or may: agents, tokens, and whatever starts agents."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Protocol

from kici.engine.labels import AUTOMATIC_PREFIXES, COMMON
from kici.orchestrator.store.database import Db

DAYS = 7
"""For so long an agent that is gone counts as one that may come back."""
SESSIONS = 5_000
"""Of those that are gone, the latest; of ephemeral agents one is like another."""
FRESH_S = 5.0


class OffersLabels(Protocol):
    """What starts agents on demand knows which labels they have."""

    async def __call__(self, db: Db) -> Collection[str]: ...


class KnownLabels:
    """Remembers what it read for a few seconds: a label that is missing then is looked for anew."""

    def __init__(self, *others: OffersLabels, clock: Callable[[], float] = time.monotonic) -> None:
        self._others = others
        self._clock = clock
        self._read_at = float("-inf")
        self._labels: frozenset[str] = frozenset()

    async def among(self, db: Db, wanted: Collection[str]) -> frozenset[str]:
        """All known labels; read now if one of the wanted is not among those that are remembered."""
        if self._clock() - self._read_at > FRESH_S or not self._labels.issuperset(wanted):
            found = await read(db)
            for other in self._others:
                found |= frozenset(await other(db))
            self._labels, self._read_at = found, self._clock()
        return self._labels


async def read(db: Db) -> frozenset[str]:
    """Labels of agents that are connected or were lately, and those that a valid token names.

    A token without a bound names none: with it an agent may offer any label, but nobody has said that one will.
    """
    rows = await db.fetch(
        """
        select distinct label
          from (
            select unnest(s.labels) as label from agent_sessions s where s.closed_at is null
            union all
            select unnest(gone.labels)
              from (select s.labels from agent_sessions s
                     where s.closed_at > now() - make_interval(days => $1) order by s.closed_at desc limit $2) gone
            union all
            select jsonb_array_elements_text(t.labels) from agent_tokens t
             where jsonb_typeof(t.labels) = 'array' and t.revoked_at is null
               and (t.expires_at is null or t.expires_at > now())
          ) named
        """,
        DAYS,
        SESSIONS,
    )
    found = frozenset(row["label"] for row in rows)
    # Before the first agent nothing is known of the machines that will come.
    return found if any(label.startswith(AUTOMATIC_PREFIXES) for label in found) else found | COMMON
