"""`make traps`: every trap of a table names a test that pytest collects, or says why it does not apply.

The tables are the TOML files beside this one: `number = { trap = "…", tests = ["path::name", …] }` or `{ trap = "…",
does_not_apply = "…" }`. The last line is `traps N shown M not applicable K`; a row without either, a number that is
missing or stands twice, and a test that pytest does not collect are failures.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def main() -> int:
    collected = _collected()
    failures = []
    for file in sorted(HERE.glob("*.toml")):
        table = tomllib.loads(file.read_text())
        failures += [f"{file.name}: {problem}" for problem in problems(table, collected)]
        rows = table["traps"]
        idle = sum("does_not_apply" in row for row in rows.values())
        print(f"{file.stem}: traps {len(rows)} shown {len(rows) - idle} not applicable {idle}")
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return 1 if failures else 0


def problems(table: Mapping[str, Any], collected: frozenset[str]) -> Iterator[str]:
    """What is wrong with one table, a sentence each. `collected` holds test ids, without their parameters too."""
    rows: Mapping[str, Mapping[str, Any]] = table["traps"]
    wanted = [str(number) for number in range(1, table["count"] + 1)]
    yield from (f"trap {number} is missing" for number in wanted if number not in rows)
    yield from (f"there is no trap {number}" for number in rows if number not in wanted)
    for number, row in rows.items():
        tests, excuse = row.get("tests", []), row.get("does_not_apply", "")
        if not row.get("trap"):
            yield f"trap {number} does not say what it is"
        if bool(tests) == bool(excuse):
            yield f"trap {number} ({row.get('trap', '')}) needs either tests or a reason why it does not apply"
        yield from (f"trap {number}: pytest collects no {test}" for test in tests if test not in collected)


def _collected() -> frozenset[str]:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-o",
            "addopts=--import-mode=importlib -p no:cacheprovider",
            "tests",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"pytest could not collect:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
    ids = {line.strip() for line in done.stdout.splitlines() if "::" in line}
    return frozenset(ids | {one.partition("[")[0] for one in ids})


if __name__ == "__main__":
    raise SystemExit(main())
