"""How long to wait before dialling again."""

from __future__ import annotations

import random
from collections.abc import Iterator

QUICK = 3
MAX_S = 60.0


def delays(rng: random.Random | None = None) -> Iterator[float]:
    """Three quick tries, for an orchestrator that was only restarted; then 1 s, growing by half, to a minute."""
    chance = rng or random.Random()
    for _ in range(QUICK):
        yield chance.uniform(0.05, 0.2)
    pause = 1.0
    while True:
        yield min(pause * chance.uniform(1.0, 1.5), MAX_S)
        pause = min(pause * 1.5, MAX_S)
