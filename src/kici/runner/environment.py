"""The environment of a job's commands: what `ctx.set_env`, `ctx.add_path`, `ctx.expose` and the files `$KICI_…` change.

It is the runner's own `os.environ`, so that what user code reads, writes or starts by itself sees the same.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

FILES = ("KICI_ENV", "KICI_PATH", "KICI_OUTPUT", "KICI_SUMMARY")
MAX_FILE_BYTES = 1024 * 1024
MARK = "KICI_STEP_ID"
"""In the environment of commands of steps that run beside others: tells whose a process is."""


class Written(Struct, frozen=True):
    """What a step has left in its files."""

    outputs: dict[str, str]
    summary: str


def check_variable(name: str, value: str, secrets: Collection[str]) -> None:
    """Raise `ValueError` with a sentence if a step must not set this."""
    if not name or "=" in name or "\0" in name or "\0" in value:
        raise ValueError(f"{name!r} cannot be set: a name is not empty and has no =, and nothing has a NUL character")
    if name in secrets:
        raise ValueError(f"{name} is the name of a secret of this job: use another name")


class Environment:
    def __init__(self, variables: Mapping[str, str], *, secrets: Collection[str]) -> None:
        os.environ.clear()
        os.environ.update(variables)
        self._secrets = secrets
        self._before: dict[str, str | None] = {}
        """What the variables were that belong to the current step only."""

    def variables(self) -> Mapping[str, str]:
        """As they are now."""
        return os.environ

    def set(self, name: str, value: str) -> None:
        """Raises `ValueError` with a sentence."""
        check_variable(name, value, self._secrets)
        self._before.pop(name, None)
        self._put(name, value)

    def add_path(self, directory: str | os.PathLike[str]) -> None:
        """Raises `ValueError` with a sentence."""
        text = os.path.abspath(directory)
        if os.pathsep in text or "\0" in text:
            raise ValueError(f"{text!r} cannot stand in PATH")
        self._put("PATH", os.pathsep.join((text, *filter(None, (self.variables().get("PATH"),)))))

    def for_this_step(self, name: str, value: str | None) -> None:
        """Until `end_step`. None: it is not set."""
        self._before.setdefault(name, self.variables().get(name))
        self._put(name, value)

    def end_step(self) -> None:
        for name, value in self._before.items():
            self._put(name, value)
        self._before.clear()

    def files(self, parent: str) -> Files:
        """New files for one attempt of a step, their names in the environment until the step ends."""
        made = Files(Path(tempfile.mkdtemp(prefix="kici-step-", dir=parent)))
        for name in FILES:
            self.for_this_step(name, str(made.path(name)))
        return made

    def apply(self, files: Files, say: Callable[[str], None]) -> Written:
        """Take over what the step has written; says what it cannot take. Removes the files."""
        variables = files.pairs("KICI_ENV", say)
        directories = files.lines("KICI_PATH", say)
        written = Written(files.pairs("KICI_OUTPUT", say), files.text("KICI_SUMMARY", say))
        files.remove()
        self.end_step()
        for name, value in variables.items():
            try:
                self.set(name, value)
            except ValueError as error:
                say(f"$KICI_ENV: {error}")
        for directory in reversed(directories):
            try:
                self.add_path(directory)
            except ValueError as error:
                say(f"$KICI_PATH: {error}")
        return written

    def branch(self, mark: str) -> Branch:
        """For a step that runs beside others; its commands carry `KICI_STEP_ID=mark`."""
        return Branch(self._secrets, mark)

    def join(self, branch: Branch) -> None:
        """Take over what the step has set for those after it."""
        for name, value in branch.lasting.items():
            self._put(name, value)
        for directory in branch.paths:
            self.add_path(directory)

    def _put(self, name: str, value: str | None) -> None:
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


class Branch(Environment):
    """The environment of one of several steps that run at the same time: its own changes over the process's."""

    def __init__(self, secrets: Collection[str], mark: str) -> None:
        self.mark = mark
        self._secrets = secrets
        self._before = {}
        self._own: dict[str, str | None] = {MARK: mark}
        self.lasting: dict[str, str] = {}
        self.paths: list[str] = []
        """In the order in which they were put in front."""

    def variables(self) -> Mapping[str, str]:
        merged = {**os.environ, **self._own}
        return {name: value for name, value in merged.items() if value is not None}

    def set(self, name: str, value: str) -> None:
        super().set(name, value)
        self.lasting[name] = value

    def add_path(self, directory: str | os.PathLike[str]) -> None:
        super().add_path(directory)
        self.paths.append(os.path.abspath(directory))

    def _put(self, name: str, value: str | None) -> None:
        self._own[name] = value


class Files:
    """`$KICI_ENV` and the others of one attempt of a step."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        for name in FILES:
            self.path(name).touch(mode=0o600)

    def path(self, name: str) -> Path:
        return self._directory / name.removeprefix("KICI_").lower()

    def pairs(self, name: str, say: Callable[[str], None]) -> dict[str, str]:
        found, problems = parse(self._read(name, say))
        for problem in problems:
            say(f"${name}: {problem}")
        return found

    def lines(self, name: str, say: Callable[[str], None]) -> list[str]:
        return [line for line in self._read(name, say).splitlines() if line.strip()]

    def text(self, name: str, say: Callable[[str], None]) -> str:
        return self._read(name, say)

    def remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def _read(self, name: str, say: Callable[[str], None]) -> str:
        with suppress(OSError):  # the step has removed it
            with self.path(name).open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
            if len(data) <= MAX_FILE_BYTES:
                return data.decode(errors="replace")
            say(f"${name} has more than {MAX_FILE_BYTES:,} bytes: nothing of it is used")
        return ""


def parse(text: str) -> tuple[dict[str, str], list[str]]:
    """`NAME=value` lines, and `NAME<<END`, lines, `END` for a value of several; later ones win.

    Returns the pairs, and a sentence for each thing that is neither.
    """
    found: dict[str, str] = {}
    problems: list[str] = []
    lines = iter(enumerate(text.replace("\r\n", "\n").split("\n"), 1))
    for number, line in lines:
        if not line.strip():
            continue
        before_equals, equals, value = line.partition("=")
        before_arrows, arrows, end = line.partition("<<")
        if equals and not (arrows and len(before_arrows) < len(before_equals)):
            name = before_equals.strip()
        elif arrows and end.strip():
            name = before_arrows.strip()
            body: list[str] = []
            for _, inner in lines:
                if inner == end.strip():
                    value = "\n".join(body)
                    break
                body.append(inner)
            else:
                problems.append(f"line {number}: the value of {name} does not end with a line {end.strip()!r}")
                continue
        else:
            problems.append(f"line {number} is neither NAME=value nor NAME<<END")
            continue
        if name:
            found[name] = value
        else:
            problems.append(f"line {number} has no name")
    return found, problems
