"""What a job's `resources` do to its box, with a real runner in it."""

from __future__ import annotations

import pytest

from kici.agent import machine
from kici.agent.sandbox import cgroups
from kici.agent.sandbox.contract import Limits
from kici.engine.lockfile import LockAmount, LockResources
from tests.integration.agent.execution.conftest import Jobs, lock_job

GIB = 1024**3
BUILD = lock_job("build", ["true"], resources=LockResources(LockAmount(), LockAmount(500, GIB)))


async def test_where_there_are_no_control_groups_the_job_runs_and_is_told_that_its_limits_are_not_kept(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "hierarchies", list)
    said: list[str] = []
    async with jobs.prepared() as execution:
        assert machine.limit(BUILD, execution, Limits(), said.append) == ""
    assert said == [
        "the job's limit of 1 GiB (memory) is not kept here: there is no control group that could be limited",
        "the job's limit of 0.5 cores (cpus) is not kept here: there is no control group that could be limited",
    ]


async def test_a_job_that_says_nothing_of_them_is_left_as_it_is(jobs: Jobs) -> None:
    said: list[str] = []
    async with jobs.prepared() as execution:
        assert machine.limit(lock_job("build", ["true"]), execution, Limits(memory_bytes=GIB), said.append) == ""
    assert said == []
