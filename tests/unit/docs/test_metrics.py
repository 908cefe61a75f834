"""The operator's page of metrics tells all of them, and none that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import REGISTRY

import kici.orchestrator.app  # noqa: F401 - makes all of them

PAGE = Path(__file__).resolve().parents[3] / "docs" / "operator" / "metrics.md"


def test_the_page_names_every_metric_and_no_other() -> None:
    there = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in REGISTRY.collect()
        if family.name.startswith("kici_")
    }
    named = {
        name
        for row in PAGE.read_text().splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`(kici_\w+)", row.split("|")[1])
    }
    assert named == there
