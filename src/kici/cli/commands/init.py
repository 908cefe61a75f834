"""`kici init`."""

from __future__ import annotations

from pathlib import Path

import click

WORKFLOW = '''"""What runs when somebody pushes to main, or asks for a run."""

from kici import Ctx, job, manual, push, workflow


@job(runs_on="linux")
async def hello(ctx: Ctx) -> str:
    commit = await ctx.sh("git log --oneline -1").text()
    ctx.log.info(f"Hello from {ctx.git.branch}: {commit}")
    return commit


test = job("test", runs_on="linux", needs=[hello], matrix={"word": ["one", "two"]}, steps=["echo replace me"])


ci = workflow("ci", on=[push(branches="main"), manual()], jobs=[hello, test])
'''
IGNORED = (".kici/.secrets", "__pycache__/")


@click.command()
@click.option("--force", is_flag=True, help="Overwrite the first workflow if it is there.")
def init(force: bool) -> None:
    """Make .kici/workflows/ci.py, a workflow that compiles as it is."""
    from kici.errors import KiciError

    root = Path.cwd()
    path = root / ".kici" / "workflows" / "ci.py"
    if path.exists() and not force:
        raise KiciError(".kici/workflows/ci.py is there already: --force overwrites it")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(WORKFLOW)
    _ignore(root / ".gitignore")
    click.echo(
        "made .kici/workflows/ci.py\n\n"
        "  kici compile                          write its lock file, and commit both\n"
        "  kici preview --event push --ref main  what a push would run\n"
        "  kici run local                        run it here"
    )


def _ignore(path: Path) -> None:
    """Local secrets must not be committed, byte code must not be locked."""
    text = path.read_text() if path.exists() else ""
    missing = [line for line in IGNORED if line not in text.splitlines()]
    if missing:
        path.write_text(text + ("\n" if text and not text.endswith("\n") else "") + "\n".join(missing) + "\n")
