"""A small chaos: `make chaos` is the whole one."""

from __future__ import annotations

import os
import random

import pytest

from tests.chaos.run import Plan, chaos
from tests.support.postgres import reachable_folder


@pytest.mark.proof
@pytest.mark.timeout(400)
async def test_whatever_is_killed_every_job_succeeds_once_and_every_log_is_whole() -> None:
    seed = int(os.environ.get("SEED") or 0) or random.randrange(1, 10**6)
    print(f"chaos seed {seed}: SEED={seed} JOBS=200 AGENTS=8 make chaos repeats the order of the kills")
    with reachable_folder() as folder:
        figures = await chaos(folder, Plan(seed, jobs=200, agents=8, minutes=3, work_s=(0.05, 0.4)))
    print("\n".join(figures.lines()))
    assert figures.violations == [], seed
    assert sum(figures.kills.values()) >= 7
