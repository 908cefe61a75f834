from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from kici.cli.run_tree import duration, lines, print_tree, rich_tree, summaries
from kici.wire.api import Annotation, Job, Run, Step

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RUN = Run(
    run_id="r",
    workflow_name="ci",
    status="running",
    provider="local",
    repo_identifier="demo",
    ref="refs/heads/main",
    sha="1a2b3c4" + "0" * 33,
    started_at=NOW - timedelta(seconds=6, milliseconds=120),
)
JOBS = [
    Job("1", "lint", "lint", "success", 1, duration_ms=1210, steps=[Step(0, "ruff", "success", duration_ms=840)]),
    Job(
        "2",
        "test (3.11)",
        "test",
        "failed",
        2,
        duration_ms=125_000,
        error_message="step pytest failed\nand more",
        steps=[
            Step(
                0, "pytest", "failed", exit_code=3, duration_ms=61_000, last_lines="E  assert", peak_memory_bytes=2**20
            ),
            Step(1, "flaky", "failed", exit_code=1, error_message="exit code 1", continue_on_error=True, attempt=2),
            Step(2, "report", "skipped"),
        ],
    ),
    Job("3", "deploy", "deploy", "queued", waiting_reason="no agent has the label gpu"),
]
PLAIN = """\
● ci  running  6.1s  main 1a2b3c4
├─ ✓ lint  1.2s
│  └─ ✓ ruff  840ms
├─ ✗ test (3.11)  failed  2m05s  attempt 2  step pytest failed
│  ├─ ✗ pytest  failed  1m01s  exit code 3  (peak memory 1 MiB)
│  │  » E  assert
│  ├─ ✗ flaky  failed  try 2  exit code 1  (allowed to fail)
│  └─ − report  skipped
└─ ○ deploy  queued  no agent has the label gpu"""


def test_a_run_reads_as_a_tree() -> None:
    said: list[str] = []
    print_tree(RUN, JOBS, NOW, said.append)
    assert "\n".join(said) == PLAIN


def test_annotations_stand_below_their_step_and_summaries_after_the_tree() -> None:
    told = [Annotation("error", "it is wrong\nreally", "src/app.py", 7), Annotation("notice", "mind the gap")]
    jobs = [
        Job("1", "lint", "lint", "success", 1, steps=[Step(0, "ruff", "success", annotations=told, summary="# All\n")]),
        Job("2", "docs", "docs", "skipped", error_message="no file below docs/ has changed"),
    ]
    said: list[str] = []
    print_tree(RUN, jobs, NOW, said.append)
    assert said[1:] == [
        "├─ ✓ lint",
        "│  └─ ✓ ruff",
        "│     ✗ error  src/app.py:7  it is wrong",
        "│     · notice  mind the gap",
        "└─ − docs  skipped  no file below docs/ has changed",
    ]
    assert rich_tree(RUN, jobs, NOW).plain.splitlines() == said
    assert list(summaries(jobs)) == [("── summary: lint / ruff ──", "# All")]


def test_a_terminal_shows_the_same_words() -> None:
    assert rich_tree(RUN, JOBS, NOW).plain == PLAIN


def test_it_can_be_written_without_unicode() -> None:
    assert all(line.plain(ascii_only=True).isascii() for line in lines(RUN, JOBS, NOW))


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, "-"),
        (0, "0ms"),
        (999, "999ms"),
        (1000, "1.0s"),
        (59_999, "59.9s"),
        (60_000, "1m00s"),
        (3_720_000, "1h02m"),
    ],
)
def test_durations(milliseconds: int | None, text: str) -> None:
    assert duration(milliseconds) == text


def test_a_reused_job_says_from_which_run() -> None:
    reused = Job("1", "lint", "lint", "success", 1, duration_ms=1210, reused_from_run_id="0f0f0f0f-0000")
    assert [line.plain() for line in lines(RUN, [reused], NOW)][1] == "└─ ✓ lint  1.2s  reused from run 0f0f0f0f"
