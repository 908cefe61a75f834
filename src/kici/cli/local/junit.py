"""How local runs ended as JUnit XML, which other CI systems and editors read: workflow = testsuite, job = testcase."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape, quoteattr

from kici.errors import KiciError

if TYPE_CHECKING:
    from kici.cli.local.board import JobRecord
    from kici.cli.local.run import LocalRun

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELEMENTS = {"failed": "failure", "skipped": "skipped", "success": ""}
"""Status of a job → element of its testcase; for all others `error`."""


def write(path: Path, runs: Sequence[LocalRun], clean: Callable[[Any], Any]) -> None:
    """Raises `KiciError` if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document(runs, clean), "utf-8")
    except OSError as error:
        raise KiciError(f"--junit: {path} cannot be written: {error.strerror}") from error


def document(runs: Sequence[LocalRun], clean: Callable[[Any], Any]) -> str:
    """Nothing secret is in it: every text passes `clean`."""
    suites = [_suite(run, clean) for run in runs]
    jobs = [job for run in runs for job in run.board.jobs.values()]
    head = f'<testsuites name="kici-local"{_counts(jobs)} time="{_seconds(sum(map(_took, runs)))}">'
    return "\n".join(('<?xml version="1.0" encoding="UTF-8"?>', head, *suites, "</testsuites>", ""))


def _suite(run: LocalRun, clean: Callable[[Any], Any]) -> str:
    jobs = list(run.board.jobs.values())
    name = _attribute(run.workflow.name)
    lines = [f'  <testsuite name={name}{_counts(jobs)} time="{_seconds(_took(run))}">']
    for job in jobs:
        case = f'    <testcase classname={name} name={_attribute(job.name)} time="{_seconds(_took(job))}"'
        element = _ELEMENTS.get(job.status.value, "error")
        if not element:
            lines.append(f"{case}/>")
            continue
        message = _attribute(clean(job.error) or job.status.value)
        body = _text(clean(_steps(job))) if element != "skipped" else ""
        lines += [f"{case}>", f"      <{element} message={message}>{body}</{element}>", "    </testcase>"]
    return "\n".join((*lines, "  </testsuite>"))


def _steps(job: JobRecord) -> str:
    """What became of its steps, one a line."""
    return "\n".join(f"{step.name}: {step.status}{f': {step.error}' if step.error else ''}" for step in job.steps)


def _counts(jobs: Sequence[JobRecord]) -> str:
    elements = [_ELEMENTS.get(job.status.value, "error") for job in jobs]
    counted = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    shown = "".join(f' {name}="{elements.count(element)}"' for name, element in counted.items())
    return f' tests="{len(jobs)}"{shown}'


def _took(what: LocalRun | JobRecord) -> float:
    return max(0.0, what.ended - what.started) if what.started and what.ended else 0.0


def _seconds(value: float) -> str:
    return f"{value:.3f}"


def _attribute(text: str) -> str:
    return quoteattr(_NOT_XML.sub("\ufffd", text))


def _text(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))
