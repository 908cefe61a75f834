"""Alembic's entry: one connection migrates, a second one holds the lock that keeps others out meanwhile."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationInfo
from sqlalchemy import Column, DateTime, MetaData, Table, Text, create_engine, func
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateTable

from kici.orchestrator.store.migrate import LOCK
from kici.orchestrator.store.migrations.sql import content_hash

PATIENCE_S = 120.0
LOCK_TIMEOUT = "2s"
"""A migration never makes the live tables wait longer than this behind its own lock requests."""

HISTORY = Table(
    "schema_history",
    MetaData(),
    Column("revision", Text, primary_key=True),
    Column("applied_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("content_hash", Text, nullable=False),
)


@contextmanager
def alone(url: str) -> Iterator[None]:
    """Tried in a loop: a waiter blocked in `pg_advisory_lock` has a snapshot, which stalls concurrent index builds."""
    deadline = time.monotonic() + PATIENCE_S
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            row = connection.execute("select pg_try_advisory_lock(%s)", (LOCK,)).fetchone()
            if row is not None and row[0]:
                break
            if time.monotonic() > deadline:
                raise SystemExit("another process has been migrating this database for too long")
            time.sleep(0.1)
        yield  # closing the connection gives the lock back


def note(ctx: MigrationContext, step: MigrationInfo, heads: Collection[Any], run_args: Mapping[str, Any]) -> None:
    """Keep the history in the transaction of the step: what was applied, when, with which content."""
    ctx.execute(CreateTable(HISTORY, if_not_exists=True))
    for revision in step.up_revision_ids:
        ctx.execute(HISTORY.delete().where(HISTORY.c.revision == revision))
        if step.is_upgrade:
            ctx.execute(HISTORY.insert().values(revision=revision, content_hash=content_hash(revision)))


def online(url: str) -> None:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool)
    with alone(url), engine.connect() as connection:
        connection.exec_driver_sql(f"set lock_timeout = '{LOCK_TIMEOUT}'")
        connection.commit()
        context.configure(connection=connection, transaction_per_migration=True, on_version_apply=note)
        with context.begin_transaction():
            context.run_migrations()


def offline() -> None:
    context.configure(
        dialect_name="postgresql", literal_binds=True, transaction_per_migration=True, on_version_apply=note
    )
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    offline()
else:
    online(context.config.attributes["url"])
