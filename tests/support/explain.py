"""How PostgreSQL runs the very statement that a store function sends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from asyncpg import Pool, Record

from kici.orchestrator.store.database import Db


class Explained:
    """Stands for a connection: runs each statement under EXPLAIN ANALYZE and keeps its plan. Answers are empty."""

    def __init__(self, db: Db) -> None:
        self._db = db
        self.plans: list[dict[str, Any]] = []

    async def fetch(self, statement: str, *args: Any) -> list[Any]:
        (plan,) = await self._db.fetchval(f"explain (analyze, buffers, format json) {statement}", *args)
        self.plans.append(plan["Plan"])
        return []

    async def fetchrow(self, statement: str, *args: Any) -> None:
        await self.fetch(statement, *args)

    async def fetchval(self, statement: str, *args: Any) -> None:
        await self.fetch(statement, *args)

    async def execute(self, statement: str, *args: Any) -> str:
        await self.fetch(statement, *args)
        return f"{self.plans[-1].get('Operation', 'select').upper()} 0"

    async def executemany(self, statement: str, rows: list[Any]) -> None:
        for row in rows:
            await self.fetch(statement, *row)

    @property
    def db(self) -> Db:
        return cast("Db", self)

    @property
    def buffers(self) -> int:
        """Pages of all statements together."""
        return sum(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in self.plans)

    def scans(self, table: str) -> bool:
        """Whether some statement reads the whole table."""
        return any(_scans(plan, table) for plan in self.plans)


def _scans(plan: dict[str, Any], table: str) -> bool:
    if plan["Node Type"] == "Seq Scan" and plan["Relation Name"] == table:
        return True
    return any(_scans(part, table) for part in plan.get("Plans", []))


class Answering(Explained):
    """Also gives the answers, for functions that go on from them: each statement runs twice."""

    async def fetch(self, statement: str, *args: Any) -> list[Any]:
        await super().fetch(statement, *args)
        return list(await self._db.fetch(statement, *args))

    async def fetchrow(self, statement: str, *args: Any) -> Any:
        await super().fetch(statement, *args)
        return await self._db.fetchrow(statement, *args)

    async def fetchval(self, statement: str, *args: Any) -> Any:
        await super().fetch(statement, *args)
        return await self._db.fetchval(statement, *args)


@asynccontextmanager
async def explained(pool: Pool[Record], *, answering: bool = False) -> AsyncIterator[Explained]:
    """What is run in the block is rolled back."""
    async with pool.acquire() as db:
        transaction = db.transaction()
        await transaction.start()
        try:
            yield Answering(db) if answering else Explained(db)
        finally:
            await transaction.rollback()
