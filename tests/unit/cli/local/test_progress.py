"""What a run shows while nothing is said."""

from __future__ import annotations

import io

import pytest

from kici.cli.local.progress import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def made(*, live: bool) -> tuple[Progress, io.BytesIO, Clock]:
    out, clock = io.BytesIO(), Clock()
    return Progress(out, live=live, clock=clock), out, clock


def test_a_log_has_no_escape_and_a_line_only_after_a_long_silence() -> None:
    progress, out, clock = made(live=False)
    progress.started("test", "pytest")
    progress.write(b"line\n")
    clock.now += 59
    progress.tick()
    assert out.getvalue() == b"line\n"
    clock.now += 2
    progress.tick()
    progress.tick()
    assert out.getvalue().decode() == "line\n… still running: test: pytest  1m01s\n"
    progress.ended("test")
    clock.now += 500
    progress.tick()
    progress.close()
    assert b"\x1b" not in out.getvalue()
    assert out.getvalue().count(b"\n") == 2


def test_a_terminal_has_a_line_for_each_running_job_below_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "30")
    progress, out, clock = made(live=True)
    progress.started("test", "pytest")
    progress.write(b"line\n")
    assert out.getvalue().decode() == "line\n  ● test: pytest  0s\n"
    clock.now += 65
    progress.tick()
    assert out.getvalue().decode().endswith("\x1b[1A\r\x1b[J  ● test: pytest  1m05s\n")
    progress.started("lint", "a very long name of a step that no terminal holds")
    progress.tick()
    assert all(len(line) < 30 for line in out.getvalue().decode().split("\x1b[J")[-1].splitlines())
    progress.close()
    assert out.getvalue().decode().endswith("\x1b[2A\r\x1b[J")


def test_colours_are_left_out_where_nobody_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, coloured in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", value)
        progress, out, _ = made(live=True)
        progress.started("a", "b")
        progress.tick()
        assert (b"\x1b[2m" in out.getvalue()) is coloured


def test_many_jobs_do_not_fill_the_screen() -> None:
    progress, out, _ = made(live=True)
    for number in range(20):
        progress.started(f"job {number}", "step")
    progress.tick()
    shown = out.getvalue().decode().splitlines()
    assert len(shown) == 6
    assert "and 15 more" in shown[-1]
