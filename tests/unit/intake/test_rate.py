from __future__ import annotations

from kici.orchestrator.intake.rate import SlidingWindow


def test_the_window_slides() -> None:
    window = SlidingWindow(2)
    assert [window.wait_s(now) for now in (0.0, 30.0)] == [0, 0]
    assert window.wait_s(31.0) == 29
    assert window.wait_s(59.9) == 1
    assert window.wait_s(60.0) == 0
    assert window.wait_s(61.0) == 29


def test_what_was_refused_does_not_count() -> None:
    window = SlidingWindow(1)
    assert window.wait_s(0.0) == 0
    assert all(window.wait_s(float(now)) for now in range(1, 60))
    assert window.wait_s(60.0) == 0
