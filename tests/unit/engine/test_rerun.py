from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.engine.lifecycle import FAILED_JOB, TERMINAL_JOB, JobStatus
from kici.engine.rerun import JobOfRun, to_run

OK, FAILED, SKIPPED = JobStatus.SUCCESS, JobStatus.FAILED, JobStatus.SKIPPED
PIPELINE = (
    JobOfRun("lint", "lint"),
    JobOfRun("test (1)", "test"),
    JobOfRun("test (2)", "test"),
    JobOfRun("deploy", "deploy", ("lint", "test (1)", "test (2)")),
    JobOfRun("tell", "tell", ("deploy",)),
)
NAMES = [job.name for job in PIPELINE]
endings = st.fixed_dictionaries({}, optional={name: st.sampled_from(sorted(TERMINAL_JOB)) for name in NAMES})


def ended(**other: JobStatus) -> dict[str, JobStatus]:
    return dict.fromkeys(NAMES, OK) | {
        name.replace("_", " (") + ")" * ("_" in name): how for name, how in other.items()
    }


def test_what_did_not_succeed_is_run_with_all_that_needs_it() -> None:
    found = to_run(PIPELINE, ended(test_2=FAILED, deploy=SKIPPED, tell=SKIPPED), "failed")
    assert found == {"test (2)", "deploy", "tell"}


def test_what_was_skipped_by_its_own_condition_is_not_run() -> None:
    """Nor is what needs it, although that succeeded."""
    assert to_run(PIPELINE, ended(lint=SKIPPED), "failed") == frozenset()


def test_what_was_halted_with_a_failed_combination_is_run() -> None:
    found = to_run(PIPELINE, ended(test_1=SKIPPED, test_2=FAILED, deploy=SKIPPED, tell=SKIPPED), "failed")
    assert found == {"test (1)", "test (2)", "deploy", "tell"}


def test_a_job_brings_all_its_combinations_or_the_one_that_is_named() -> None:
    assert to_run(PIPELINE, ended(), "job", "test") == {"test (1)", "test (2)", "deploy", "tell"}
    assert to_run(PIPELINE, ended(), "job", "test (1)") == {"test (1)", "deploy", "tell"}
    assert to_run(PIPELINE, ended(lint=FAILED), "job", "tell") == {"tell"}


@pytest.mark.parametrize("how", sorted(FAILED_JOB | {JobStatus.CANCELLED}))
def test_every_ending_but_success_and_a_skip_is_run_again(how: JobStatus) -> None:
    assert "tell" in to_run(PIPELINE, ended(tell=how), "failed")


@given(endings, st.sampled_from(["all", "failed", "job"]), st.sampled_from(["lint", "test", "deploy"]))
def test_what_is_reused_has_an_ending_and_needs_nothing_that_is_run(
    known: dict[str, JobStatus], mode: str, chosen: str
) -> None:
    again = to_run(PIPELINE, known, mode, chosen)  # type: ignore[arg-type]
    for job in PIPELINE:
        if job.name not in again:
            assert mode != "all"
            assert job.name in known
            assert not again & set(job.needs)
