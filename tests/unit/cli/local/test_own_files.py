from __future__ import annotations

from kici.cli.local.own_files import left_alone
from kici.engine.lockfile import LockCache, LockJob, LockStep

JOB = LockJob(
    "build",
    (
        LockStep("a", caches=(LockCache("k", ("~/.cache/uv", "node_modules")), LockCache("l", ("~/.cargo",)))),
        LockStep("b"),
    ),
    ("linux",),
)


def paths(job: LockJob) -> list[tuple[str, ...]]:
    return [cache.paths for step in job.steps for cache in step.caches]


def test_no_cache_touches_a_developers_home_directory() -> None:
    assert paths(left_alone(JOB, home=True, checkout=False)) == [("node_modules",)]


def test_no_cache_touches_the_checkout_of_a_run_in_place() -> None:
    assert paths(left_alone(JOB, home=False, checkout=True)) == [("~/.cache/uv",), ("~/.cargo",)]
    assert paths(left_alone(JOB, home=True, checkout=True)) == []


def test_a_run_in_a_sandbox_has_all_its_caches() -> None:
    assert left_alone(JOB, home=False, checkout=False) is JOB
