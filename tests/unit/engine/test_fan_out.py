from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.engine.fan_out import Child, halted_because, halts, through
from kici.engine.lifecycle import TERMINAL_JOB, JobStatus

S = JobStatus


def children(*statuses: JobStatus, gated: frozenset[int] = frozenset()) -> list[Child]:
    return [Child(str(at), at, status, gated=at in gated) for at, status in enumerate(statuses)]


def test_the_lowest_positions_get_the_places() -> None:
    all_new = children(S.PENDING, S.PENDING, S.PENDING)
    assert through(all_new, {"2", "1", "0"}, 2) == ("0", "1")


@pytest.mark.parametrize("status", [S.QUEUED, S.RUNNING, S.RECOVERING, S.CANCELLING, S.PENDING])
def test_a_child_keeps_its_place_until_it_has_ended(status: JobStatus) -> None:
    assert through(children(status, S.PENDING, gated=frozenset({1})), {"1"}, 1) == ()


@pytest.mark.parametrize("status", sorted(TERMINAL_JOB))
def test_an_ended_child_leaves_its_place_however_it_ended(status: JobStatus) -> None:
    assert through(children(status, S.PENDING, gated=frozenset({1})), {"1"}, 1) == ("1",)


def test_a_child_whose_needs_are_not_met_takes_no_place() -> None:
    assert through([Child("a", 0, S.PENDING, ready=False), Child("b", 1, S.PENDING)], {"b"}, 1) == ("b",)


@pytest.mark.parametrize(
    ("status", "halting"),
    [
        (S.SUCCESS, False),
        (S.SKIPPED, False),
        (S.FAILED, True),
        (S.CANCELLED, True),
        (S.INFRA_LOST, True),
        (S.TIMED_OUT_STALE, True),
    ],
)
def test_what_halts_a_fan_out(status: JobStatus, halting: bool) -> None:
    assert halts(status) is halting


def test_the_reason_names_the_child_that_failed() -> None:
    assert halted_because("test (3.11)", S.FAILED) == "fan-out halted by fail_fast: test (3.11) failed"


@given(st.lists(st.sampled_from([S.PENDING, S.RUNNING, S.SUCCESS]), max_size=12), st.integers(1, 4))
def test_never_more_than_the_window_and_no_place_left_empty(statuses: list[JobStatus], max_parallel: int) -> None:
    waiting = frozenset(at for at, status in enumerate(statuses) if status is S.PENDING)
    known = children(*statuses, gated=waiting)
    running = statuses.count(S.RUNNING)
    got = through(known, {str(at) for at in waiting}, max_parallel)
    assert len(got) == min(len(waiting), max(max_parallel - running, 0))
    assert list(got) == [str(at) for at in sorted(waiting)][: len(got)]
