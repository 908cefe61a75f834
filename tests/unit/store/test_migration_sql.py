from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.dialects.postgresql import psycopg

from kici.orchestrator.store.migrations.sql import escaped

DIALECT = psycopg.dialect()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    "sql",
    [
        """insert into t values ('{"a":true, "b" :false}')""",
        "select '5'::int, now()::date",
        "select 'a' like '%b%', 7 % 2",
        r"select 'back\:slash', E'\\:x'",
        "select a[1:2] from t",
    ],
)
def test_sql_reaches_the_server_as_it_stands_in_the_file(sql: str) -> None:
    statement = text(escaped(sql))
    assert not statement._bindparams
    assert str(statement.compile(dialect=DIALECT)).replace("%%", "%") == sql
