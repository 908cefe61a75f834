"""`kici fixture`: an event as JSON, for `kici run local --event FILE` and `kici preview --event FILE`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("word", metavar="EVENT")
@click.option("--workflow", "name", default="", help="Make an event that this workflow's trigger takes.")
@click.option("--ref", default="", help="Branch or tag; the current branch if left out.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write it there: .kici/events/NAME.json."
)
def fixture(word: str, name: str, ref: str, output: Path | None) -> int:
    """Print a whole event, to be changed by hand: JSON always, so there is no --json.

    EVENT is the kind (push, tag, pr, comment, review, review_comment, release, dispatch, create, delete, status,
    workflow_run, fork, star, watch, webhook, kici_event, workflow_complete, job_complete, generic_webhook, schedule,
    lifecycle, manual), if need be with what it is about: pr:closed, kici_event:built, create:tag, schedule:"0 6 * * *".
    """
    import msgspec

    from kici.cli import repository
    from kici.cli.local.event import Asked, event
    from kici.cli.local.event import repository as facts
    from kici.cli.local.secrets import everywhere
    from kici.compiler.compile import compile_directory
    from kici.errors import KiciError
    from kici.nearest import nearest

    root = repository.root()
    workflow = None
    if name:
        workflows = {
            one.name: one for one in compile_directory(root, secrets=lambda: everywhere(root)).needed().workflows
        }
        if name not in workflows:
            raise KiciError(
                f"there is no workflow {name!r}{nearest(name, workflows)}; there are {', '.join(workflows)}"
            )
        workflow = workflows[name]
    made = event(Asked(word, ref), facts(root), workflow)
    # The commit is that of the day on which it is used.
    text = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(made, sha="", before=""))) + b"\n"
    if output is None:
        click.echo(text.decode(), nl=False)
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(text)
        click.echo(f"wrote {output}", err=True)
    return 0
