"""Why a step or a job did not succeed: facts in, one sentence out.

The one place of this wording: the step's error, the job's, `kici runs show`, the API and the last line of the step's
log all have this sentence. It is made of what the machine knows (exit code, signal, memory, disk, limits), never of
what a log says; the last line of a command's output stands at its end as an addition.
"""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from enum import StrEnum

from msgspec import Struct

from kici.engine.lifecycle import JobStatus

MAX_LAST_LINES = 10
MAX_LINE_CHARS = 300
_QUOTED_CHARS = 160


class Reason(StrEnum):
    """Of what kind the reason is: for programs. More may come."""

    EXIT_CODE = "exit_code"
    """A command ended with a code other than 0."""
    SIGNAL = "signal"
    """A command, or the job's runner, was killed by a signal."""
    OUT_OF_MEMORY = "out_of_memory"
    """The kernel killed a process of the job because its memory limit was reached."""
    DISK_FULL = "disk_full"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    """By somebody, by a newer run, by a failure beside it, with its run."""
    ERROR = "error"
    """The author's code raised, or said what cannot be done."""
    RUNNER = "runner"
    """The job's runner ended, or broke the protocol, before it told how the job ended."""
    PREPARATION = "preparation"
    """The job ended before any of its code ran."""
    INFRA_LOST = "infra_lost"
    """Its machine was lost."""


class Facts(Struct, frozen=True):
    """What is known of one end. Memory is that of the whole job until then."""

    said: str = ""
    """What happened, as who saw it says it: `make test failed: exit code 2`."""
    reason: Reason = Reason.ERROR
    exit_code: int | None = None
    signal: str = ""
    """`SIGKILL`"""
    last_lines: str = ""
    """Of the output of the commands, as `last_lines` gives them: masked."""
    out_of_memory_kills: int = 0
    """During the step."""
    refused_processes: int = 0
    """During the step: how often one was too many."""
    disk_full: bool = False
    peak_memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    processes_limit: int | None = None


_BY_THEMSELVES = frozenset({Reason.CANCELLED, Reason.TIMEOUT})
"""Ends that we have brought about: what the machine says beside it is no reason."""


def kind(facts: Facts) -> Reason:
    """The reason that the machine knows better outweighs what a command made of it."""
    if facts.reason in _BY_THEMSELVES:
        return facts.reason
    if facts.out_of_memory_kills:
        return Reason.OUT_OF_MEMORY
    return Reason.DISK_FULL if facts.disk_full else facts.reason


def sentence(facts: Facts) -> str:
    """On one line, without a character that a terminal or a page would obey. Empty if nothing is known."""
    parts = [_one_line(facts.said) + _explained(facts)]
    if facts.reason not in _BY_THEMSELVES:
        parts += _machine(facts)
    last = _printable(facts.last_lines.rpartition("\n")[2]).strip()
    if last and facts.reason is not Reason.CANCELLED:
        parts.append(f"its last output: {last if len(last) <= _QUOTED_CHARS else last[: _QUOTED_CHARS - 1] + '…'}")
    return "; ".join(part for part in parts if part)


def _explained(facts: Facts) -> str:
    """A shell says 128 + n of a command that signal n has ended."""
    code = facts.exit_code
    if facts.reason is not Reason.EXIT_CODE or code is None or not (name := signal_of(code)):
        return ""
    return f" (128 + {code - 128}: {name})"


def _machine(facts: Facts) -> list[str]:
    parts = []
    if facts.out_of_memory_kills:
        parts.append(f"the job ran out of memory and {_count(facts.out_of_memory_kills)} killed{_of_memory(facts)}")
    if facts.refused_processes:
        limit = f" of {facts.processes_limit:,}" if facts.processes_limit else ""
        parts.append(f"it reached its limit{limit} processes")
    if facts.disk_full:
        parts.append("no space is left on the disk of the job's directory")
    return parts


def _count(kills: int) -> str:
    return "a process was" if kills == 1 else f"{kills:,} processes were"


def _of_memory(facts: Facts) -> str:
    known = []
    if facts.memory_limit_bytes is not None:
        known.append(f"limit {size(facts.memory_limit_bytes)}")
    if facts.peak_memory_bytes is not None:
        known.append(f"peak {size(facts.peak_memory_bytes)}")
    return f" ({', '.join(known)})" if known else ""


def of_step(name: str, sentence_: str) -> str:
    """The job's sentence, of the step that made it fail."""
    return f"step {name!r} failed: {sentence_}"


def of_runner(exit_code: int, when: str) -> str:
    """The runner ended by itself. `exit_code`: minus the number of the signal that killed it; `when`: `before …`."""
    if exit_code < 0:
        return f"the runner was killed by {signal_name(-exit_code)} {when}"
    return f"the runner exited with code {exit_code} {when}"


def of_ended_job(status: JobStatus, *, timed_out: bool) -> str:
    """The kind of an end of which nobody has told one. Empty of one that needs no reason."""
    match status:
        case JobStatus.FAILED | JobStatus.DRIFT_DROPPED:
            return Reason.TIMEOUT if timed_out else Reason.ERROR
        case JobStatus.TIMED_OUT_STALE:
            return Reason.TIMEOUT
        case JobStatus.CANCELLED:
            return Reason.CANCELLED
        case JobStatus.INFRA_LOST:
            return Reason.INFRA_LOST
    return ""


def cancelled_by(actor: str, *, force: bool = False) -> str:
    """`actor` as in `cancelled_by`: `user:ann`, `admin_token:ci`, or a name alone."""
    kind_, _, name = actor.partition(":")
    who = f"token {name}" if kind_ == "admin_token" else name or kind_
    return f"cancelled by {who}{', at once' if force else ''}"


def signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def signal_of(exit_code: int) -> str:
    """Which signal an exit code tells of: its name, or empty. Minus n, or a shell's 128 + n."""
    if exit_code < 0:
        return signal_name(-exit_code)
    with suppress(ValueError):
        return signal.Signals(exit_code - 128).name if exit_code > 128 else ""
    return ""


def size(count: int) -> str:
    """`512 MiB`, `1.5 GiB`, `900 KiB`."""
    for unit, name in ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
        if count >= unit:
            value = count / unit
            return f"{value:.1f} {name}" if value < 10 and value % 1 >= 0.05 else f"{value:.0f} {name}"
    return f"{count} B"


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def last_lines(output: str) -> str:
    """The last lines of an output that say something, at most `MAX_LAST_LINES` of `MAX_LINE_CHARS`.

    Without colours and control characters; of a progress bar its last state. To be masked before: what is cut here
    cannot be masked any more.
    """
    kept: list[str] = []
    for line in reversed(_ESCAPES.sub("", output).replace("\r\n", "\n").split("\n")):
        states = [state for state in line.split("\r") if state.strip()]
        text = _printable(states[-1]).rstrip() if states else ""
        if text:
            kept.append(text if len(text) <= MAX_LINE_CHARS else text[: MAX_LINE_CHARS - 1] + "…")
        if len(kept) == MAX_LAST_LINES:
            break
    return "\n".join(reversed(kept))


def _printable(line: str) -> str:
    """Without controls, marks that turn the direction of text, and what stands for no character at all."""
    return "".join(" " if letter.isspace() else letter for letter in line if letter.isspace() or letter.isprintable())


def _one_line(text: str) -> str:
    return " ".join(_printable(text).split())
