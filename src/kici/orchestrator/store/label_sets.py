"""Label sets: one row for each distinct thing that jobs require of their agent. They never change."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
from asyncpg import Record
from msgspec import Struct

from kici.engine.labels import Requirement
from kici.engine.lockfile import Pattern
from kici.engine.patterns import show
from kici.orchestrator.store.database import Db


async def ids_of(db: Db, wanted: Mapping[str, Requirement]) -> dict[str, int]:
    """Key (`labels.key`) → id of each of these requirements; those that are new get their row."""
    keys = sorted(wanted)
    known = {row["key"]: row["id"] for row in await _sets_by_key(db, keys)}
    new = [key for key in keys if key not in known]
    if not new:
        return known
    await db.executemany(
        """
        insert into label_sets (key, labels, excludes, patterns) values ($1, $2, $3, $4) on conflict (key) do nothing
        """,
        [
            (
                key,
                list(wanted[key].labels),
                [pattern for pattern in wanted[key].excludes if isinstance(pattern, str)],
                msgspec.to_builtins(
                    {
                        "patterns": wanted[key].patterns,
                        "excludes": [pattern for pattern in wanted[key].excludes if not isinstance(pattern, str)],
                    }
                ),
            )
            for key in new
        ],
    )
    return {row["key"]: row["id"] for row in await _sets_by_key(db, keys)}


async def _sets_by_key(db: Db, keys: Sequence[str]) -> list[Record]:
    return await db.fetch("select id, key from label_sets where key = any($1::text[])", keys)


class _Patterns(Struct):
    """What `label_sets.patterns` holds: globs and regular expressions that an agent must have, and regular expressions
    that it must not."""

    patterns: tuple[Pattern, ...] = ()
    excludes: tuple[Pattern, ...] = ()


async def read(db: Db, ids: Collection[int]) -> dict[int, Requirement]:
    rows = await db.fetch(
        "select id, labels, excludes, patterns from label_sets where id = any($1::bigint[])", list(ids)
    )
    found = {}
    for row in rows:
        more = msgspec.convert(row["patterns"] or {}, _Patterns)
        excludes = tuple(sorted((*row["excludes"], *more.excludes), key=show))
        found[row["id"]] = Requirement(tuple(row["labels"]), excludes, more.patterns)
    return found
