"""`kici diagnostics`."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import click

_MARKS = {"ok": "✓", "warning": "!", "problem": "✗"}


class Check(NamedTuple):
    name: str
    status: str
    """`ok`, `warning` or `problem`."""
    text: str


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def diagnostics(as_json: bool) -> int:
    """Look at what kici needs here: versions, git, the sandbox, this repository, the orchestrator and the token.

    Exit code 1 if something keeps kici from working.
    """
    checks = list(_all())
    if as_json:
        click.echo(json.dumps({"checks": [check._asdict() for check in checks]}, indent=2))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            click.echo(f"{_MARKS[check.status]} {check.name:<{width}}  {check.text}")
    return 1 if any(check.status == "problem" for check in checks) else 0


def _all() -> Iterator[Check]:
    from kici import __version__

    yield Check("kici", "ok", f"{__version__}, Python {platform.python_version()} at {sys.executable}")
    for look in (_git, _sandbox, _repository):
        yield _guarded(look)
    yield from _orchestrator()


def _guarded(look: Callable[[], Check]) -> Check:
    """A look that fails is a finding, not the end."""
    from kici.errors import KiciError

    try:
        return look()
    except (KiciError, OSError, subprocess.SubprocessError) as error:
        return Check(look.__name__.strip("_"), "problem", str(error))


def _git() -> Check:
    if shutil.which("git") is None:
        return Check("git", "problem", "it is not installed: kici needs it to know which files belong to a repository")
    done = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True, timeout=10)
    return Check("git", "ok", done.stdout.strip().removeprefix("git version "))


def _sandbox() -> Check:
    from kici.agent.sandbox.choose import choose

    choice = choose("auto")
    works = type(choice.sandbox).__name__ != "NoSandbox"
    return Check("sandbox", "ok" if works else "warning", choice.why)


def _repository() -> Check:
    from kici.cli import repository
    from kici.cli.local.secrets import everywhere
    from kici.compiler import drift
    from kici.compiler.compile import compile_directory

    try:
        root = repository.root()
    except repository.NoRepository:
        return Check("repository", "warning", "there is no .kici/ here: `kici init` makes the first workflow")
    compiled = compile_directory(root, secrets=lambda: everywhere(root))
    if compiled.lock is None:
        return Check("repository", "problem", f"{root}: {len(compiled.problems)} errors: `kici compile` shows them")
    if drift.differences(root, compiled.lock, compiled.data):
        return Check("repository", "warning", f"{root}: the lock file is not up to date: run `kici compile`")
    count = len(compiled.lock.workflows)
    return Check("repository", "ok", f"{root}: {count} {'workflow' if count == 1 else 'workflows'}, lock up to date")


def _orchestrator() -> Iterator[Check]:
    from kici import __version__
    from kici.cli import client as clients
    from kici.cli import config
    from kici.cli.commands.login import expiry
    from kici.wire.api import Whoami

    if config.readable_by_others():
        yield Check("config", "warning", f"{config.file()} can be read by others: chmod 600 it, and change the token")
    try:
        client = clients.configured()
    except clients.ClientError as error:
        yield Check("orchestrator", "warning", str(error))
        return
    with client:
        try:
            who = client.get("/whoami", Whoami)
        except clients.Refused as error:
            status = "problem" if error.status in (401, 403) else "warning"
            yield Check("orchestrator", "ok", f"{client.url} answers")
            yield Check("token", status, str(error))
            return
        except clients.ClientError as error:
            yield Check("orchestrator", "problem", str(error))
            return
    differs = who.version != __version__
    text = f"{client.url}, version {who.version or 'unknown'}"
    yield Check(
        "orchestrator", "warning" if differs else "ok", text + (f"; this is kici {__version__}" if differs else "")
    )
    soon = expiry(who)
    yield Check("token", "warning" if soon else "ok", "; ".join(filter(None, (f"{who.label} ({who.role})", soon))))
