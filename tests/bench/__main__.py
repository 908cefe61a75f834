"""`python -m tests.bench [--only name,name]`: run the subjects, print a table, write build/bench.json."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from tests import bench
from tests.bench.harness import Result


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("--only", default="", help="names of figures, separated by commas")
    only = {name for name in parser.parse_args().only.split(",") if name}
    console = Console()
    results: list[Result] = []
    for subject in sorted(module.name for module in pkgutil.iter_modules(bench.__path__)):
        if not subject.startswith("bench_"):
            continue
        module = importlib.import_module(f"tests.bench.{subject}")
        if only and not only & set(module.NAMES):
            continue
        console.print(f"[dim]{subject.removeprefix('bench_')} …")
        results += module.run()
    unknown = only - {result.name for result in results}
    if unknown:
        console.print(f"[red]there is no figure called {', '.join(sorted(unknown))}")
        return 2
    build = Path("build")
    build.mkdir(exist_ok=True)
    (build / "bench.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    console.print(_table(results))
    return 0


def _table(results: list[Result]) -> Table:
    table = Table("figure", "p50", "p99", "floor or peer", "its p50", "ratio", "limit", "")
    for result in results:
        reference = result.floor or result.peer
        table.add_row(
            result.name,
            f"{result.p50:.4g} {result.unit}",
            f"{result.p99:.4g}",
            reference.name if reference else "–",
            f"{reference.value:.4g}" if reference else "–",
            f"{result.ratio:.2f}" if result.ratio is not None else "–",
            "–" if result.limit is None else f"{'≥' if result.at_least else '≤'} {result.limit:g}",
            "[green]kept" if result.kept else "[red]missed",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
