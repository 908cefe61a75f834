"""Writes docs/user/cli.md: `python -m tests.support.cli_reference`. A test compares it with what `--help` says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from kici.cli.main import program

PAGE = Path(__file__).parents[2] / "docs/user/cli.md"
_WIDTH = 110
_INTRO = """# The `kici` command

Written from `kici … --help` by `python -m tests.support.cli_reference`; a test keeps it equal.

| exit code | means |
|---|---|
| 0 | it went well |
| 1 | a job failed, something does not compile or is out of date, or the orchestrator said no |
| 2 | it was called wrongly: an unknown option, workflow or job |
| 3 | `kici run local`: the event starts no workflow |
| 130 | interrupted |

- `--json` prints one JSON document on standard output; whatever people read goes to standard error then.
- Colours only on a terminal, and never with `NO_COLOR`. `kici --debug …` shows a traceback.
- `kici completion bash|zsh|fish` completes commands, options, and the names of workflows, jobs and runs.

| variable | for |
|---|---|
| `KICI_URL`, `KICI_TOKEN` | orchestrator and token; they win over what `kici login` remembers |
| `KICI_CONFIG_DIR` | where `config` is kept; `~/.kici` if it is not set |
| `KICI_RUN_DIR` | where `kici run local` makes its copies; the system's temporary directory if it is not set |
| `NO_COLOR` | no colours |
"""


def page() -> str:
    return "\n".join((_INTRO, *(_section(name, text) for name, text in helps(program, "kici", None))))


def helps(command: click.Command, name: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    """Every command with its whole name and what `--help` prints."""
    settings: dict[str, Any] = {**command.context_settings, "terminal_width": _WIDTH, "max_content_width": _WIDTH}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for one in command.list_commands(context):
            found = command.get_command(context, one)
            assert found
            yield from helps(found, one, context)


def _section(name: str, text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"## {name}\n\n```text\n{lines}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page())
