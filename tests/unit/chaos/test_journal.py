from __future__ import annotations

from pathlib import Path

from tests.chaos import journal
from tests.chaos.journal import Stretch


def stretch(attempt: int, began: float, ended: float, how: str = "end", agent: str = "a") -> Stretch:
    return Stretch(agent, "job", attempt, began, ended, how)


def test_attempts_one_after_the_other_are_fine() -> None:
    assert journal.violations([stretch(1, 0, 1, "died"), stretch(2, 1, 2)]) == []


def test_attempts_that_overlap_are_told_with_both_agents() -> None:
    (told,) = journal.violations([stretch(1, 0, 1.5, "killed"), stretch(2, 1, 2, agent="b")])
    assert told == "attempts 1 (a, killed) and 2 (b, end) of job job overlapped for 0.500 s"


def test_an_attempt_that_began_twice_is_told_even_if_not_at_the_same_time() -> None:
    (told,) = journal.violations([stretch(1, 0, 1), stretch(1, 2, 3, agent="b")])
    assert told == "attempt 1 of job job began on a and again on b"


def test_what_a_killed_process_left_open_ended_when_it_was_seen_to_be_gone(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    writing = journal.Journal(path)
    writing.begin("job", 1)
    writing.end("job", 1)
    writing.begin("job", 2)
    pid = int(path.read_text().split(" ")[1])
    first, second = journal.read("a", path, {pid: 1e12}, now=1e13)
    assert (first.attempt, first.how, second.attempt, second.how, second.ended) == (1, "end", 2, "died", 1e12)


def test_the_longest_recovery_is_from_a_lost_attempt_to_the_next() -> None:
    ran = [stretch(1, 0, 1, "died"), stretch(2, 4, 5, "died"), stretch(3, 6, 7)]
    assert journal.longest_recovery_s(ran) == 3
