"""What the programs import before they do anything: start-up is imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[3] / "src"


def imported(code: str) -> set[str]:
    """The modules that are loaded after the code, in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('modules:', *sys.modules)"],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.rpartition("modules:")[2].split())


def cli(*arguments: str) -> str:
    return f"from kici.cli.main import program, run; run(program, 'kici', {list(arguments)!r})"


@pytest.mark.parametrize("code", [cli("--help"), cli("--version"), cli("copmile"), cli("run", "--help")])
def test_help_needs_click_alone(code: str) -> None:
    heavy = {"asyncio", "httpx", "rich", "msgspec", "kici.sdk", "kici.engine", "kici.compiler", "structlog"}
    assert imported(code) & heavy == set()


def test_the_administrators_help_needs_click_alone() -> None:
    found = imported(
        "from kici.admin.main import program; from kici.program import run; run(program, 'kici-admin', ['--help'])"
    )
    assert found & {"asyncio", "httpx", "rich", "asyncpg", "kici.sdk", "kici.orchestrator", "kici.compiler"} == set()


def test_authors_imports_need_msgspec_alone() -> None:
    found = imported("from kici import workflow, job, step, push")
    assert found & {"asyncio", "httpx", "rich", "click", "dataclasses", "pathlib", "difflib", "subprocess"} == set()
    assert {name for name in found if name.startswith("kici") and not name.startswith("kici.sdk")} == {
        "kici",
        "kici.errors",
        "kici.nearest",
    }


def test_kici_itself_loads_no_sdk() -> None:
    found = imported("import kici, kici.wire.codec")
    assert not any(name.startswith("kici.sdk") for name in found)


def test_a_compile_needs_neither_asyncio_nor_the_sdk() -> None:
    found = imported("import kici.compiler.compile, kici.compiler.check, kici.compiler.drift")
    assert found & {"asyncio", "httpx", "rich", "kici.sdk.workflows", "kici.runner"} == set()


def test_a_local_run_does_not_load_the_sdk_beside_its_runner() -> None:
    found = imported("import kici.cli.local.session, kici.cli.local.run, kici.cli.local.report")
    assert not any(name.startswith("kici.sdk") for name in found)
