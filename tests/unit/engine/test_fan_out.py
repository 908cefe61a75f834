from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kici.engine.fan_out import FINE, halted_by, places
from kici.engine.lifecycle import TERMINAL_JOB, JobStatus

OPEN = sorted(set(JobStatus) - TERMINAL_JOB)


def test_without_a_limit_all_have_a_place() -> None:
    assert places([JobStatus.RUNNING] * 100, None) is None


def test_what_is_under_way_takes_a_place_and_what_has_ended_gives_it_back() -> None:
    assert places([], 2) == 2
    assert places([JobStatus.QUEUED, JobStatus.SUCCESS, JobStatus.FAILED], 2) == 1
    assert places([JobStatus.RECOVERING, JobStatus.CANCELLING], 2) == 0


def test_a_limit_that_was_passed_gives_no_place() -> None:
    assert places([JobStatus.RUNNING] * 3, 2) == 0


@given(st.lists(st.sampled_from(JobStatus)), st.integers(1, 5))
def test_whoever_takes_the_places_never_passes_the_limit(others: list[JobStatus], limit: int) -> None:
    under_way = sum(status in OPEN for status in others)
    free = places(others, limit)
    assert free is not None
    assert free >= 0
    assert free == 0 or under_way + free == limit


def test_the_first_that_did_not_succeed_is_named() -> None:
    endings = {"a (1)": JobStatus.SUCCESS, "a (2)": JobStatus.FAILED, "a (3)": JobStatus.CANCELLED}
    assert halted_by(endings) == "fan-out halted by fail_fast: a (2) failed"
    assert halted_by({"a (1)": JobStatus.INFRA_LOST}) == "fan-out halted by fail_fast: a (1) ended as infra_lost"


@given(st.dictionaries(st.text(max_size=3), st.sampled_from(sorted(FINE))))
def test_success_and_a_skip_halt_nobody(endings: dict[str, JobStatus]) -> None:
    assert halted_by(endings) is None
