"""`kici diff`."""

from __future__ import annotations

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the changes as a JSON list.")
def diff(as_json: bool) -> int:
    """Say how the workflows differ from .kici/kici.lock.json, value by value.

    Nothing is written. Exit code 0: no difference; 1: there is one, or the workflows do not compile.
    """
    import msgspec

    from kici.cli import repository
    from kici.cli.local.secrets import everywhere
    from kici.compiler import changes, drift
    from kici.compiler.compile import compile_directory
    from kici.engine import lockfile

    root = repository.root()
    compiled = compile_directory(root, secrets=lambda: everywhere(root))
    lock = compiled.needed()
    found = changes.between(changes.committed(root), lock)
    # What `kici compile --check` refuses too: the same values in other bytes.
    otherwise = [] if found else drift.differences(root, lock, compiled.data)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    elif not found and not otherwise:
        click.echo(f"the workflows are as {lockfile.PATH} says")
    for line in () if as_json else (*found, *otherwise):
        click.echo(str(line))
    return 1 if found or otherwise else 0
