"""Every function of the store that runs SQL has a test of its plan, or stands here as one that runs seldom."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[3]
STORE = PROJECT / "src/kici/orchestrator/store"
PACKAGE = "kici.orchestrator.store"
ELSEWHERE = ("migrate", "embedded", "notify", "database")
"""Modules without statements on tables."""

COLD = {
    "an operator's command": {
        "secrets.put",
        "sessions.of_agent",
        "secrets.of_scopes",
        "secrets.delete_scope",
        "sources.all_live",
        "sources.create",
        "sources.delete",
        "tokens.create_admin",
        "tokens.list_admin",
        "views.workflows.count",
        "views.workflows.listed",
        "tokens.revoke_admin",
        "tokens.create_agent",
        "tokens.list_agent",
        "tokens.revoke_agent",
        "queue_rules.pause",
        "queue_rules.set_cap",
        "queue_rules.remove_cap",
        "caches.listed",
    },
    "once in the life of a process, or of an agent's connection": {
        "coordinators.leave",
        "registrations.repositories",
        "tokens.put_bootstrap",
        "tokens.put_agent",
        "sessions.insert",
    },
    "once an hour": {
        "logs.create_partition",
        "logs.partitions",
        "logs.hour_is_closed",
        "logs.forgotten",
        "logs.drop_partition",
    },
    "by a key, of a table that does not grow with what happens": {
        "tokens.touch_admin",
        "tokens.touch_agent",
        "tokens.why_refused",
        "registrations.workflow",
    },
    "a large webhook, streamed: one insert": {"events.insert_streamed"},
    "tested through `dispatch.queue_stats.read`": {"views.queue_stats.read"},
    "an upload's end: one insert by its keys": {"artifacts.add"},
    "once in an evaluation, by the keys of one run": {
        "expansions.facts",
        "expansions.forget_result",
        "expansions.replace",
        "needs.of_pending",
        "runs.add_jobs",
    },
}

RUNS_SQL = {"fetch", "fetchrow", "fetchval", "execute", "executemany", "copy_records_to_table"}


def functions() -> Iterator[str]:
    """`module.function` of everything in the store that takes a connection and, itself or through a private function
    of its module, runs a statement."""
    for path in sorted(STORE.rglob("*.py")):
        module = ".".join(path.relative_to(STORE).with_suffix("").parts)
        if module.split(".")[0] in {*ELSEWHERE, "migrations", "postgres"}:
            continue
        found = {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.AsyncFunctionDef)}
        yield from (f"{module}.{name}" for name in found if not name.startswith("_") and _runs_sql(name, found))


def _runs_sql(name: str, found: dict[str, ast.AsyncFunctionDef]) -> bool:
    for call in (node.func for node in ast.walk(found[name]) if isinstance(node, ast.Call)):
        if isinstance(call, ast.Attribute) and call.attr in RUNS_SQL and ast.unparse(call.value) == "db":
            return True
        if isinstance(call, ast.Name) and call.id.startswith("_") and call.id in found and _runs_sql(call.id, found):
            return True
    return False


def planned() -> set[str]:
    """What the tests of plans call."""
    return {
        name
        for path in (PROJECT / "tests/integration").rglob("test_*.py")
        if path.stem.endswith("_plans")
        for name in _calls(ast.parse(path.read_text()))
    }


def _calls(tree: ast.Module) -> Iterator[str]:
    names = {
        alias.asname or alias.name: f"{node.module}.{alias.name}".removeprefix(f"{PACKAGE}.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PACKAGE)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
            yield f"{names[node.value.id]}.{node.attr}"


def test_every_hot_statement_has_a_test_of_its_plan() -> None:
    cold = {name for names in COLD.values() for name in names}
    missing = sorted(set(functions()) - planned() - cold)
    assert missing == [], "put these into tests/integration/store/test_hot_plans.py, or say above why they are cold"


def test_what_is_called_cold_is_there_and_has_no_plan() -> None:
    cold = {name for names in COLD.values() for name in names}
    assert sorted(cold - set(functions())) == []
