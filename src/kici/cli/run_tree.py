"""A run with its jobs and steps as a tree: plain lines for a log, colours for a terminal.

✗ ci  failed  6.1s  main 1a2b3c4  Failed jobs: test
├─ ✓ lint  1.2s
│  └─ ✓ ruff  1.1s
├─ ✗ test  failed  2.0s
│  └─ ✗ pytest  failed  1.9s  exit code 1
└─ ○ deploy  pending  waits for test

Below a step stand the last lines that it wrote, if it failed, and its annotations:
`! warning  src/app.py:7  unused import`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from kici.engine import failure
from kici.wire import api

if TYPE_CHECKING:
    from rich.text import Text

_LOOKS = {
    "success": ("✓", "+", "green"),
    "failed": ("✗", "x", "red"),
    "infra_lost": ("✗", "x", "red"),
    "timed_out_stale": ("✗", "x", "red"),
    "drift_dropped": ("✗", "x", "red"),
    "cancelled": ("⊘", "!", "yellow"),
    "cancelling": ("⊘", "!", "yellow"),
    "skipped": ("−", "-", "bright_black"),
    "running": ("●", "*", "cyan"),
    "recovering": ("●", "?", "yellow"),
    "error": ("✗", "x", "red"),
    "warning": ("⚠", "!", "yellow"),
    "notice": ("·", ".", "cyan"),
    "output": ("»", ">", "bright_black"),
}
"""Status, or level of an annotation → mark, mark without Unicode, colour."""
_WAITS = ("○", "o", "bright_black")
_UNSAID = frozenset({"success", "error", "warning", "notice", "output"})
"""The mark says it, or the name: that of an annotation is its level."""
_RUNS = frozenset({"running", "recovering", "cancelling"})
_ASCII = str.maketrans({"├": "|", "└": "`", "│": "|", "─": "-"})
_MAX_TEXT = 200


class Line(Struct, frozen=True):
    indent: str
    name: str
    status: str
    duration: str
    text: str = ""
    """Why it waits, or what went wrong."""

    @property
    def mark(self) -> str:
        return _LOOKS.get(self.status, _WAITS)[0]

    @property
    def colour(self) -> str:
        return _LOOKS.get(self.status, _WAITS)[2]

    def plain(self, *, ascii_only: bool = False) -> str:
        mark = _LOOKS.get(self.status, _WAITS)[1] if ascii_only else self.mark
        indent = self.indent.translate(_ASCII) if ascii_only else self.indent
        status = "" if self.status in _UNSAID else self.status
        return indent + "  ".join(part for part in (f"{mark} {self.name}", status, self.duration, self.text) if part)


def lines(run: api.Run, jobs: Sequence[api.Job], now: datetime) -> Iterator[Line]:
    """The tree's lines. `now` is for the durations of what still runs."""
    where = f"{short_ref(run.ref)} {run.sha[:7]}"
    yield Line("", run.workflow_name, run.status, _duration(run, now), _joined(where, run.failure_reason))
    for number, job in enumerate(jobs, 1):
        last = number == len(jobs)
        attempt = f"attempt {job.attempt}" if job.attempt > 1 else ""
        reused = f"reused from run {job.reused_from_run_id[:8]}" if job.reused_from_run_id else ""
        why = _joined(reused, job.waiting_reason or job.error_message)
        yield Line("└─ " if last else "├─ ", job.job_name, job.status, _duration(job, now), _joined(attempt, why))
        steps = job.steps or []
        for place, step in enumerate(steps, 1):
            indent = ("   " if last else "│  ") + ("└─ " if place == len(steps) else "├─ ")
            yield Line(indent, step.step_name, step.status, _duration(step, now), _trouble(step))
            below = ("   " if last else "│  ") + ("   " if place == len(steps) else "│  ")
            if step.status == "failed" and step.last_lines:
                for text in step.last_lines.split("\n"):
                    yield Line(below, text, "output", "")
            for one in step.annotations:
                where = f"{one.file}:{one.line}" if one.file and one.line else one.file
                yield Line(below, one.level, one.level, "", _joined(where, one.message))


def print_tree(
    run: api.Run, jobs: Sequence[api.Job], now: datetime, echo: Callable[[str], None], *, ascii_only: bool = False
) -> None:
    """Write the tree as plain lines."""
    for line in lines(run, jobs, now):
        echo(line.plain(ascii_only=ascii_only))


def summaries(jobs: Sequence[api.Job]) -> Iterator[tuple[str, str]]:
    """Heading and markdown of each step that has a summary."""
    for job in jobs:
        for step in job.steps or []:
            if step.summary:
                yield f"── summary: {job.job_name} / {step.step_name} ──", step.summary.rstrip("\n")


def rich_tree(run: api.Run, jobs: Sequence[api.Job], now: datetime) -> Text:
    """The tree for a terminal."""
    from rich.text import Text

    rows = []
    for line in lines(run, jobs, now):
        row = Text(line.indent, "bright_black")
        row.append(f"{line.mark} ", line.colour)
        row.append(line.name, "" if line.indent else "bold")
        if line.status not in _UNSAID:
            row.append(f"  {line.status}", line.colour)
        if line.duration:
            row.append(f"  {line.duration}", "bright_black")
        if line.text:
            row.append(f"  {line.text}", "red" if line.colour == "red" else "bright_black")
        rows.append(row)
    return Text("\n").join(rows)


def duration(milliseconds: int | None) -> str:
    """`840ms`, `1.2s`, `2m05s`, `1h02m`; `-` for none."""
    if milliseconds is None:
        return "-"
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    if milliseconds < 60_000:
        return f"{milliseconds // 100 / 10}s"
    minutes, seconds = divmod(milliseconds // 1000, 60)
    return f"{minutes}m{seconds:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def short_ref(ref: str) -> str:
    return ref.removeprefix("refs/heads/").removeprefix("refs/tags/")


def _duration(what: api.Run | api.Job | api.Step, now: datetime) -> str:
    if what.status in _RUNS and what.started_at is not None:
        return duration(max(0, round((now - what.started_at).total_seconds() * 1000)))
    return "" if what.duration_ms is None else duration(what.duration_ms)


def _trouble(step: api.Step) -> str:
    message = step.error_message or ""
    exit_code = f"exit code {step.exit_code}" if step.exit_code and str(step.exit_code) not in message else ""
    tries = f"try {step.attempt}" if step.attempt > 1 else ""
    allowed = "(allowed to fail)" if step.status == "failed" and step.continue_on_error else ""
    return _joined(tries, exit_code, message, _peak(step), allowed)


def _peak(what: api.Job | api.Step) -> str:
    """Of what failed: the rest needs no explanation."""
    if what.status != "failed" or what.peak_memory_bytes is None or "peak " in (what.error_message or ""):
        return ""
    return f"(peak memory {failure.size(what.peak_memory_bytes)})"


def _joined(*parts: str | None) -> str:
    text = "  ".join(part.strip().split("\n", 1)[0] for part in parts if part and part.strip())
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
