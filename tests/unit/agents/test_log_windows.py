from __future__ import annotations

from contextlib import ExitStack

from kici.orchestrator.agents.log_windows import LogWindows
from kici.wire.agent import LOG_WINDOW_BYTES, MAX_LOG_WINDOW_BYTES, LogWindow

MOST_SLOTS = 1_024
BUDGET = MOST_SLOTS * LOG_WINDOW_BYTES
SIZES = (MAX_LOG_WINDOW_BYTES // LOG_WINDOW_BYTES).bit_length()


def test_a_few_agents_get_the_largest_window_each() -> None:
    told: list[LogWindow] = []
    with LogWindows(BUDGET).open(4, told.append):
        assert told == [LogWindow(MAX_LOG_WINDOW_BYTES)]


def test_all_windows_together_stay_within_the_budget_and_everybody_is_told() -> None:
    windows = LogWindows(BUDGET)
    told: list[LogWindow] = []
    with ExitStack() as agents:
        agents.enter_context(windows.open(1, told.append))
        for slots in range(2, MOST_SLOTS + 1):
            agents.enter_context(windows.open(1, lambda window: None))
            assert windows.bytes * slots <= BUDGET
        assert told[-1].bytes == windows.bytes == LOG_WINDOW_BYTES
        assert len(told) == SIZES
    assert windows.bytes == MAX_LOG_WINDOW_BYTES


def test_an_agent_that_comes_and_goes_at_the_edge_makes_no_messages() -> None:
    windows = LogWindows(BUDGET)
    told: list[LogWindow] = []
    with windows.open(BUDGET // MAX_LOG_WINDOW_BYTES, told.append):
        for _ in range(10):
            with windows.open(1, lambda window: None):
                pass
    assert told == [LogWindow(MAX_LOG_WINDOW_BYTES), LogWindow(MAX_LOG_WINDOW_BYTES // 2)]


def test_no_window_is_smaller_than_the_one_that_agents_begin_with() -> None:
    windows = LogWindows(BUDGET)
    with windows.open(100_000, lambda window: None):
        assert windows.bytes == LOG_WINDOW_BYTES
