"""The operator's page names every hop of `kici-agent check`, in their order, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from kici.agent.check.command import HOPS

PAGE = Path(__file__).parents[4] / "docs/operator/running.md"


def test_the_page_names_every_hop_and_no_other() -> None:
    section = PAGE.read_text().split("### Whether an agent will work")[1].split("\n### ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert [name for row in rows for name in re.findall(r"`([^`]+)`", row)] == [hop.name for hop in HOPS]
