from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kici.engine.lifecycle import TERMINAL_JOB
from kici.engine.needs import Need, Skip, Start, Wait, decide

NAMES = ("build", "lint", "test", "docs")
ENDINGS = sorted(TERMINAL_JOB)

need_lists = st.lists(
    st.builds(Need, st.sampled_from(NAMES), st.frozensets(st.sampled_from(ENDINGS), min_size=1)),
    unique_by=lambda need: need.job,
)
all_endings = st.fixed_dictionaries({name: st.sampled_from(ENDINGS) for name in NAMES})


def test_a_job_without_needs_starts() -> None:
    assert decide([], {}) == Start()


def test_a_job_waits_for_what_has_not_ended() -> None:
    assert decide([Need("lint"), Need("build")], {"lint": "success"}) == Wait(("build",))


def test_a_skipped_job_says_which_need_was_not_met_and_what_it_wanted() -> None:
    assert decide([Need("build")], {"build": "cancelled"}) == Skip("build ended as cancelled (needed success)")


def test_a_job_that_accepts_failure_runs_after_one() -> None:
    assert decide([Need("test", frozenset({"failed"}))], {"test": "failed"}) == Start()


@given(need_lists, all_endings, st.sets(st.sampled_from(NAMES)))
def test_a_job_once_started_or_skipped_stays_so(needs: list[Need], final: dict[str, str], ended: set[str]) -> None:
    early = decide(needs, {name: final[name] for name in ended})
    late = decide(needs, final)
    assert isinstance(early, Wait) or type(early) is type(late)


@given(need_lists.flatmap(lambda needs: st.tuples(st.just(needs), st.permutations(needs))), all_endings)
def test_the_order_of_needs_does_not_matter(orders: tuple[list[Need], list[Need]], endings: dict[str, str]) -> None:
    written, shuffled = orders
    assert decide(written, endings) == decide(shuffled, endings)
