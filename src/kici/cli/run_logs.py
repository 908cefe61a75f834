"""The logs of a run for people: headings and lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from kici.cli.client import Client, segment
from kici.engine.lifecycle import StepStatus
from kici.wire import api

_PAGE = 2000
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z ")


class LogPrinter:
    """Prints lines below a heading for each step, again whenever another step's lines came between."""

    def __init__(
        self, echo: Callable[[str], None], *, timestamps: bool = False, style: Callable[[str], str] = str
    ) -> None:
        self._echo = echo
        self._timestamps = timestamps
        self._style = style
        self._heading = ""

    def print(self, new: api.LogLines) -> None:
        step = "preparation" if new.step_index < 0 else f"{new.step_index + 1} {new.step_name}"
        attempt = f" (attempt {new.attempt})" if new.attempt > 1 else ""
        heading = f"── {new.job_name}{attempt} / {step} ──"
        if heading != self._heading:
            self._heading = heading
            self._echo(self._style(heading))
        for line in new.lines:
            stamp = None if self._timestamps else _STAMP.match(line)
            self._echo(line[stamp.end() :] if stamp else line)


def stored(client: Client, run_id: str, jobs: Sequence[api.Job]) -> Iterator[api.LogLines]:
    """All lines that are there now, step after step. `jobs` come with their steps."""
    for job in jobs:
        for step in job.steps or ():
            if step.status != StepStatus.PENDING:
                yield from _of_step(client, run_id, job, step)


def _of_step(client: Client, run_id: str, job: api.Job, step: api.Step) -> Iterator[api.LogLines]:
    path = f"/runs/{segment(run_id)}/jobs/{segment(job.job_id)}/steps/{step.step_index}/logs"
    cursor: int | None = 0
    while cursor is not None:
        page = client.get(path, api.LogPage, {"cursor": cursor, "limit": _PAGE})
        if not page.lines:
            return
        yield api.LogLines(
            job_id=job.job_id,
            job_name=job.job_name,
            step_index=step.step_index,
            step_name=step.step_name,
            first_line=cursor,
            lines=page.lines,
            attempt=max(1, job.attempt),
        )
        cursor = page.next_cursor
