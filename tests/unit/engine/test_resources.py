from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kici.engine import resources
from kici.engine.lockfile import LockAmount, LockResources
from kici.engine.resources import Offer

GIB = 1024**3
MACHINE = LockAmount(2000, 8 * GIB)
FREE = Offer(LockAmount(), MACHINE)
amounts = st.builds(LockAmount, st.none() | st.integers(10, 256_000), st.none() | st.integers(64 * 1024**2, 1024 * GIB))


def both(cpus: int | None = None, memory: int | None = None) -> LockResources:
    return LockResources(LockAmount(cpus, memory), LockAmount(cpus, memory))


def test_a_job_without_a_word_has_what_the_agent_gives() -> None:
    assert resources.decide(None, Offer(LockAmount(500), MACHINE)).limits == LockAmount(500)


def test_a_limit_of_the_job_counts_also_where_the_agent_has_none() -> None:
    verdict = resources.decide(both(500, GIB), FREE)
    assert (verdict.limits, verdict.remarks, verdict.problem) == (LockAmount(500, GIB), (), "")


def test_a_limit_above_the_agents_is_lowered_and_that_is_told() -> None:
    wanted = LockResources(LockAmount(), LockAmount(4000, 4 * GIB))
    verdict = resources.decide(wanted, Offer(LockAmount(1000, 2 * GIB), MACHINE))
    assert verdict.limits == LockAmount(1000, 2 * GIB)
    assert verdict.problem == ""
    assert verdict.remarks == (
        "the job's limit of 4 GiB (memory) is lowered to the agent's, 2 GiB (KICI_JOB_MEMORY)",
        "the job's limit of 4 cores (cpus) is lowered to the agent's, 1 core (KICI_JOB_CPUS)",
    )


def test_a_request_above_what_the_agent_gives_names_both_figures_and_the_way_out() -> None:
    verdict = resources.decide(both(memory=4 * GIB), Offer(LockAmount(memory_bytes=GIB), MACHINE))
    assert verdict.problem == (
        "the job requests 4 GiB of memory, and this agent gives a job 1 GiB: raise KICI_JOB_MEMORY there, or choose a"
        " larger agent by labels in runs_on"
    )


def test_a_request_above_the_machine_is_told_too() -> None:
    verdict = resources.decide(both(3500, 64 * GIB), FREE)
    assert "requests 64 GiB of memory, and this machine has 8 GiB" in verdict.problem
    assert "requests 3.5 cores of processor time, and this machine has 2 cores" in verdict.problem


def test_what_nobody_keeps_is_told() -> None:
    assert resources.not_kept(both(500, GIB), LockAmount(500, GIB)) == ()
    assert resources.not_kept(None, LockAmount()) == ()
    assert resources.not_kept(both(memory=GIB), LockAmount()) == (
        "the job's limit of 1 GiB (memory) is not kept here: there is no control group that could be limited",
    )


def test_a_lock_file_that_nobody_has_compiled_is_checked_too() -> None:
    assert list(resources.problems(None)) == []
    assert list(resources.problems(both(500, GIB))) == []
    assert len(list(resources.problems(LockResources(LockAmount(0, -1), LockAmount(300_000))))) == 3
    assert list(resources.problems(LockResources(LockAmount(2), LockAmount(1)))) == ["requests more than its limit"]


@given(amounts, amounts, amounts)
def test_no_job_gets_more_than_the_agent_gives_or_than_it_says(
    requests: LockAmount, limits: LockAmount, given_: LockAmount
) -> None:
    found = resources.decide(LockResources(requests, limits), Offer(given_, MACHINE)).limits
    for field in ("cpu_millis", "memory_bytes"):
        bounds = [one for one in (getattr(limits, field), getattr(given_, field)) if one is not None]
        assert getattr(found, field) == (min(bounds) if bounds else None)
