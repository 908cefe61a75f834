"""The operator's page names a test for each row: it must exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "operator" / "what-happens-when.md"


def test_every_row_names_a_test_that_exists() -> None:
    failures, _, _ = PAGE.read_text().partition("\n## Proofs")
    rows = [line for line in failures.splitlines() if line.startswith("| ") and "| shown by |" not in line]
    assert len(rows) > 25
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, f"no test in: {row}"
        for path, name in named:
            assert f"def {name}(" in (ROOT / path).read_text(), f"{path} has no {name}"
