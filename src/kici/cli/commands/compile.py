"""`kici compile`."""

from __future__ import annotations

import gc
from pathlib import Path

import click


@click.command("compile")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if the committed lock file differs.")
@click.option("--strict", is_flag=True, help="Take warnings for errors.")
@click.option("--watch", is_flag=True, help="Again after each change, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Say what was found as JSON; with --watch again each time.")
def compile_(check: bool, strict: bool, watch: bool, as_json: bool) -> int:
    """Write .kici/kici.lock.json from the workflows.

    The modules under .kici/workflows/ are imported in a process of their own. All that is wrong with them is said at
    once.
    """
    if watch:
        return _watch(check=check, strict=strict, as_json=as_json)
    # Without garbage collection, as in the child: it finds nothing in the moment that this process lives.
    gc.disable()
    from kici.cli import repository

    return _compile(repository.root(), check=check, strict=strict, as_json=as_json)


def _watch(*, check: bool, strict: bool, as_json: bool) -> int:
    """0 when it is interrupted: that is how it ends."""
    from kici.cli import repository, watching
    from kici.errors import KiciError

    root = repository.root()
    kici, ignored = root / ".kici", frozenset({"kici.lock.json", ".kici.lock.json.new"})
    try:
        known = watching.state(kici, ignored)
        while True:
            try:
                _compile(root, check=check, strict=strict, as_json=as_json)
            except KiciError as error:
                click.echo(f"error: {error}", err=True)
            click.echo("watching .kici/, Ctrl-C ends it", err=True)
            known = watching.changed(kici, ignored, known)
    except KeyboardInterrupt:
        return 0


def _compile(root: Path, *, check: bool, strict: bool, as_json: bool) -> int:
    from kici.compiler import child_process

    child = child_process.start(root)  # imports the SDK while the rest of this program is imported
    from kici.cli.local.secrets import everywhere
    from kici.compiler import drift
    from kici.compiler.compile import compile_directory
    from kici.engine import lockfile

    compiled = compile_directory(root, strict=strict, child=child, secrets=lambda: everywhere(root))
    differences = drift.differences(root, compiled.lock, compiled.data) if compiled.lock else []
    if compiled.lock and not check and differences:
        temporary = root / ".kici" / ".kici.lock.json.new"
        temporary.write_bytes(compiled.data)
        temporary.replace(root / lockfile.PATH)
    if as_json:
        _print_json(compiled, differences)
    else:
        for diagnostic in compiled.problems:
            click.echo(f"error: {diagnostic}", err=True)
        for diagnostic in compiled.warnings:
            click.echo(f"warning: {diagnostic}", err=True)
        _tell(compiled, differences, check=check)
    return 1 if compiled.problems or (check and differences) else 0


def _tell(compiled: object, differences: list[str], *, check: bool) -> None:
    from kici.compiler.compile import Compiled
    from kici.engine import lockfile

    assert isinstance(compiled, Compiled)
    if compiled.lock is None:
        count = len(compiled.problems)
        click.echo(f"{count} {'error' if count == 1 else 'errors'}; {lockfile.PATH} was not written", err=True)
        return
    workflows = len(compiled.lock.workflows)
    jobs = sum(len(workflow.jobs) for workflow in compiled.lock.workflows)
    counted = f"{workflows} {'workflow' if workflows == 1 else 'workflows'}, {jobs} {'job' if jobs == 1 else 'jobs'}"
    if not differences:
        click.echo(f"{lockfile.PATH} is up to date: {counted}")
    elif check:
        for difference in differences:
            click.echo(f"error: {difference}", err=True)
        click.echo(f"{lockfile.PATH} is not up to date: run `kici compile` and commit it", err=True)
    else:
        click.echo(f"wrote {lockfile.PATH}: {counted}")
    for note in compiled.notes:
        click.echo(f"dynamic: {note}")


def _print_json(compiled: object, differences: list[str]) -> None:
    import msgspec

    from kici.compiler.compile import Compiled

    assert isinstance(compiled, Compiled)
    found = {
        "workflows": [workflow.name for workflow in compiled.lock.workflows] if compiled.lock else [],
        "problems": compiled.problems,
        "warnings": compiled.warnings,
        "notes": compiled.notes,
        "differences": differences,
    }
    click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
