"""How long the programs take to start: `--help`, `from kici import …`."""

from __future__ import annotations

import sys

from tests.bench.harness import Result, against_floor, process_ms

NAMES = ("cli_help_ms", "admin_help_ms", "import_kici_ms")


def run() -> list[Result]:
    def python(*argv: str) -> float:
        return process_ms([sys.executable, *argv])

    def click() -> float:
        return python("-c", "import click")

    return [
        against_floor(
            "cli_help_ms", lambda: python("-m", "kici.cli.main", "--help"), "import click", click, limit=1.6, repeats=15
        ),
        against_floor(
            "admin_help_ms",
            lambda: python("-m", "kici.admin.main", "--help"),
            "import click",
            click,
            limit=1.6,
            repeats=15,
        ),
        against_floor(
            "import_kici_ms",
            lambda: python("-c", "from kici import workflow, job, step, push"),
            "import msgspec",
            lambda: python("-c", "import msgspec"),
            limit=1.5,
            repeats=15,
        ),
    ]
