from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.engine.lockfile import Retry
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.retry import delay_s, next_attempt_in, starts_by_itself

LIMITS = Limits()
policies = st.none() | st.builds(
    Retry,
    attempts=st.integers(1, 10),
    delay_ms=st.integers(0, 100_000),
    backoff=st.sampled_from(["fixed", "exponential"]),
    max_delay_ms=st.integers(0, 100_000),
)


@pytest.mark.parametrize(
    ("began", "policy", "used", "seconds"),
    [
        (False, None, 1, 0.0),
        (False, None, 5, None),
        (True, None, 1, None),
        (True, Retry(3), 1, 1.0),
        (True, Retry(3), 2, 2.0),
        (True, Retry(3), 3, None),
        (False, Retry(3), 3, 0.0),
        (True, Retry(9), 5, None),
        (True, Retry(1), 1, None),
    ],
)
def test_user_code_runs_again_only_by_its_own_policy(
    began: bool, policy: Retry | None, used: int, seconds: float | None
) -> None:
    assert next_attempt_in(user_code_began=began, policy=policy, used=used, limits=LIMITS) == seconds


def test_delays_double_up_to_the_longest_or_stay_the_same() -> None:
    assert [delay_s(Retry(9, max_delay_ms=5_000), used) for used in (1, 2, 3, 4)] == [1, 2, 4, 5]
    assert [delay_s(Retry(9, delay_ms=500, backoff="fixed"), used) for used in (1, 2, 3)] == [0.5, 0.5, 0.5]


@given(policies, st.integers(1, 12))
def test_where_an_agent_is_told_to_kill_another_attempt_does_follow(policy: Retry | None, used: int) -> None:
    alone = starts_by_itself(policy=policy, used=used, limits=LIMITS)
    assert alone == (next_attempt_in(user_code_began=True, policy=policy, used=used, limits=LIMITS) is not None)
    if alone:
        assert next_attempt_in(user_code_began=False, policy=policy, used=used, limits=LIMITS) is not None


@given(policies, st.booleans(), st.integers(5, 50))
def test_nothing_runs_more_often_than_the_limit(policy: Retry | None, began: bool, used: int) -> None:
    assert next_attempt_in(user_code_began=began, policy=policy, used=used, limits=LIMITS) is None
