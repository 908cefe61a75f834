"""`kici init`."""

from __future__ import annotations

from pathlib import Path

import click

from kici.cli.templates import TEMPLATES

IGNORED = (".kici/.secrets", ".kici/.env.local", ".kici/secrets.yaml", "__pycache__/")
"""Local secrets must not be committed, byte code must not be locked."""


@click.command()
@click.option(
    "--template", type=click.Choice(tuple(TEMPLATES)), default="hello", show_default=True, help="What to begin with."
)
@click.option("--json", "as_json", is_flag=True, help="Say what was made as JSON.")
def init(template: str, as_json: bool) -> None:
    """Make .kici/workflows/ci.py, a workflow that compiles as it is, and a test of it.

    The branch in it is the repository's default branch. A file that is there already is never touched.
    """
    from kici.cli.local.changed import default_branch
    from kici.cli.templates import files
    from kici.errors import KiciError

    root = Path.cwd()
    if (root / ".kici/workflows/ci.py").exists():
        raise KiciError(".kici/workflows/ci.py is there already: nothing was made, remove or rename it first")
    branch = default_branch(root) or "main"
    made = [path for path, text in files(template, branch).items() if _write(root / path, text)]
    ignored = _ignore(root / ".gitignore")
    if as_json:
        import json

        click.echo(json.dumps({"template": template, "branch": branch, "made": made, "ignored": ignored}))
        return
    for path in made:
        click.echo(f"made {path}")
    if ignored:
        click.echo(f"added to .gitignore: {', '.join(ignored)}")
    preview = f"kici preview --event push --ref {branch}"
    width = len(preview) + 2
    click.echo(
        f"\n  {'kici compile':<{width}}write its lock file, and commit all of it\n"
        f"  {preview:<{width}}what a push would run\n"
        f"  {'kici run local':<{width}}run it here\n"
        f"  {'pytest .kici':<{width}}test it"
    )


def _write(path: Path, text: str) -> bool:
    """False: it is there, and stays as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        return False
    return True


def _ignore(path: Path) -> list[str]:
    """The lines that were missing."""
    text = path.read_text() if path.exists() else ""
    missing = [line for line in IGNORED if line not in text.splitlines()]
    if missing:
        path.write_text(text + ("\n" if text and not text.endswith("\n") else "") + "\n".join(missing) + "\n")
    return missing
