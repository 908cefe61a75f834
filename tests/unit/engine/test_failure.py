"""Why a step or job did not succeed, as people read it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.engine import failure
from kici.engine.failure import Facts, Reason

MIB = 1024**2
EXIT = Reason.EXIT_CODE


@pytest.mark.parametrize(
    ("facts", "kind", "sentence"),
    [
        (Facts("make failed: exit code 2", EXIT, 2), EXIT, "make failed: exit code 2"),
        (
            Facts("make failed: exit code 2", EXIT, 2, last_lines="one\n\nE  assert 1 == 2"),
            EXIT,
            "make failed: exit code 2; its last output: E  assert 1 == 2",
        ),
        (
            Facts("make failed: exit code 137", EXIT, 137),
            EXIT,
            "make failed: exit code 137 (128 + 9: SIGKILL)",
        ),
        (Facts("make failed: exit code 255", EXIT, 255), EXIT, "make failed: exit code 255"),
        (
            Facts("make failed: killed by SIGSEGV", Reason.SIGNAL, signal="SIGSEGV"),
            Reason.SIGNAL,
            "make failed: killed by SIGSEGV",
        ),
        (
            Facts(
                "node failed: killed by SIGKILL",
                Reason.SIGNAL,
                signal="SIGKILL",
                out_of_memory_kills=1,
                peak_memory_bytes=511 * MIB,
                memory_limit_bytes=512 * MIB,
            ),
            Reason.OUT_OF_MEMORY,
            "node failed: killed by SIGKILL; the job ran out of memory and a process was killed "
            "(limit 512 MiB, peak 511 MiB)",
        ),
        (
            Facts("make failed: exit code 1", EXIT, 1, out_of_memory_kills=3),
            Reason.OUT_OF_MEMORY,
            "make failed: exit code 1; the job ran out of memory and 3 processes were killed",
        ),
        (
            Facts("make failed: exit code 1", EXIT, 1, refused_processes=7, processes_limit=2048),
            EXIT,
            "make failed: exit code 1; it reached its limit of 2,048 processes",
        ),
        (
            Facts("make failed: exit code 1", EXIT, 1, disk_full=True),
            Reason.DISK_FULL,
            "make failed: exit code 1; no space is left on the disk of the job's directory",
        ),
        (
            Facts("it ran longer than its timeout of 5 s", Reason.TIMEOUT, last_lines="waiting for db", disk_full=True),
            Reason.TIMEOUT,
            "it ran longer than its timeout of 5 s; its last output: waiting for db",
        ),
        (
            Facts("cancelled by ann", Reason.CANCELLED, last_lines="working", out_of_memory_kills=1),
            Reason.CANCELLED,
            "cancelled by ann",
        ),
        (Facts("ValueError: two\nlines"), Reason.ERROR, "ValueError: two lines"),
    ],
)
def test_facts_become_a_kind_and_one_sentence(facts: Facts, kind: Reason, sentence: str) -> None:
    assert failure.kind(facts) is kind
    assert failure.sentence(facts) == sentence


def test_the_runner_and_its_step_are_named() -> None:
    assert failure.of_runner(-9, "before it was ready") == "the runner was killed by SIGKILL before it was ready"
    assert failure.of_runner(3, "before the job ended") == "the runner exited with code 3 before the job ended"
    assert failure.of_step("test", "exit code 1") == "step 'test' failed: exit code 1"


@pytest.mark.parametrize(
    ("actor", "force", "said"),
    [
        ("user:ann", False, "cancelled by ann"),
        ("admin_token:ci", False, "cancelled by token ci"),
        ("admin_token:ci", True, "cancelled by token ci, at once"),
        ("somebody", False, "cancelled by somebody"),
    ],
)
def test_who_cancelled_is_named(actor: str, force: bool, said: str) -> None:
    assert failure.cancelled_by(actor, force=force) == said


@pytest.mark.parametrize(
    ("code", "name"),
    [(-9, "SIGKILL"), (137, "SIGKILL"), (143, "SIGTERM"), (1, ""), (128, ""), (255, ""), (-200, "signal 200")],
)
def test_an_exit_code_tells_of_a_signal(code: int, name: str) -> None:
    assert failure.signal_of(code) == name


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (2048, "2 KiB"),
        (512 * MIB, "512 MiB"),
        (1536 * MIB, "1.5 GiB"),
        (1024**4, "1024 GiB"),
    ],
)
def test_sizes_are_short(count: int, text: str) -> None:
    assert failure.size(count) == text


@pytest.mark.parametrize(
    ("output", "kept"),
    [
        ("a\nb\n", "a\nb"),
        ("a\r\nb\r\n", "a\nb"),
        ("\n\n  \n", ""),
        ("\x1b[31mred\x1b[0m\n\x1b]0;title\x07plain", "red\nplain"),
        ("10%\r20%\r100%\r\n", "100%"),
        ("10%\r99%\r", "99%"),
        ("a\0b\x08\n", "ab"),
        ("a\tb\xa0c\u202ed\ufeff\U000e0001\x85", "a b cd"),
        ("x" * 400, "x" * 299 + "…"),
        ("\n".join(map(str, range(30))), "\n".join(map(str, range(20, 30)))),
    ],
)
def test_last_lines_are_those_that_say_something(output: str, kept: str) -> None:
    assert failure.last_lines(output) == kept


@given(st.text(), st.text())
def test_a_sentence_is_always_one_bounded_line(said: str, output: str) -> None:
    made = failure.sentence(Facts(said, EXIT, 1, last_lines=failure.last_lines(output)))
    assert made.isprintable()
    assert len(made) <= len(said) + 200
