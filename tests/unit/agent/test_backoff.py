from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from kici.agent.backoff import MAX_S, QUICK, delays


@given(st.integers())
def test_a_few_quick_tries_then_growing_pauses_up_to_a_minute(seed: int) -> None:
    pauses = list(itertools.islice(delays(random.Random(seed)), 20))
    assert all(pause <= 0.2 for pause in pauses[:QUICK])
    slow = pauses[QUICK:]
    assert 1.0 <= slow[0] <= 1.5
    assert all(pause <= MAX_S for pause in slow)
    assert slow[-1] == MAX_S
