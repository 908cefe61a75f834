"""`kici run local`."""

from __future__ import annotations

from pathlib import Path

import click

from kici.cli import names

NOTHING_MATCHED = 3


@click.command()
@click.argument("workflow", required=False, default="", shell_complete=names.workflows)
@click.option(
    "--event", "kind", metavar="EVENT", default=None, help="As `kici fixture` takes it, or a file; else push."
)
@click.option("--ref", default="", help="Branch or tag; the current branch if left out.")
@click.option("--target", default="", help="Of a pull request: the branch it wants to go to.")
@click.option("--changed", multiple=True, help="A file that changed (repeat it), in the place of what git says.")
@click.option("--base", default="", metavar="REF", help="Compare with where the checkout left this one.")
@click.option(
    "--job", "jobs", multiple=True, shell_complete=names.jobs, help="Only this job, and what it needs (repeat it)."
)
@click.option("--input", "inputs", multiple=True, metavar="NAME=VALUE", help="An input (repeat it).")
@click.option("--env", "variables", multiple=True, metavar="NAME[=VALUE]", help="A variable of the steps (repeat it).")
@click.option(
    "--secret", "secrets", multiple=True, metavar="NAME[=VALUE]", help="A secret; best from a variable (repeat it)."
)
@click.option("-j", "--at-once", type=click.IntRange(1), default=None, help="Jobs at once; the number of processors.")
@click.option("--sandbox", is_flag=True, help="Keep the steps in bubblewrap, as an agent does.")
@click.option("--in-place", is_flag=True, help="In the working tree itself, not in a copy of it.")
@click.option("--keep", is_flag=True, help="Leave the copies where they are, and say where.")
@click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), help="Write how it ended as JUnit XML.")
@click.option("-q", "--quiet", is_flag=True, help="Only how it ended, without the log.")
@click.option("--json", "as_json", is_flag=True, help="Say how it ended as JSON; the log goes to standard error.")
def local(
    workflow: str,
    kind: str | None,
    ref: str,
    target: str,
    changed: tuple[str, ...],
    base: str,
    jobs: tuple[str, ...],
    inputs: tuple[str, ...],
    variables: tuple[str, ...],
    secrets: tuple[str, ...],
    at_once: int | None,
    sandbox: bool,
    in_place: bool,
    keep: bool,
    junit: Path | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Run a workflow on this machine, without an orchestrator.

    The working tree runs as it is, committed or not, in a copy. The workflows are compiled in memory. Which jobs run,
    in which order, and what a failure means, is decided as it is remotely.

    WORKFLOW is run whatever starts it remotely, unless --event, --ref, --changed or --base describe an event; without
    it all workflows run that the event starts. Secrets are read from .kici/.secrets; NAME alone takes the value of a
    variable of that name. Exit code 0: all went well; 1: a job failed; 2: called wrongly; 3: the event starts nothing.
    """
    from kici.cli import repository
    from kici.cli.local.compiling import Compiling

    if sandbox and in_place:
        raise click.UsageError("--sandbox and --in-place exclude each other: a box does not see the working tree")
    given = given_inputs(inputs)
    env, hidden = _variables("--env", variables), _variables("--secret", secrets)
    root = repository.root()
    compiling = Compiling(root, hidden)  # goes on while the rest of the program is imported
    from kici.cli.local import event, session
    from kici.cli.local.event_words import UnknownEvent

    wanted = session.Wanted(
        root=root,
        workflow=workflow,
        asked=event.Asked(kind or "", ref, target, changed, given, base),
        jobs=jobs,
        env=env,
        secrets=hidden,
        at_once=at_once,
        sandbox=sandbox,
        in_place=in_place,
        keep=keep,
        as_json=as_json,
        quiet=quiet,
        junit=junit,
    )
    try:
        return session.run(wanted, compiling)
    except (session.NothingToRun, session.NotThere, session.BadInput, UnknownEvent) as error:
        click.echo(f"error: {error}", err=True)
        return NOTHING_MATCHED if isinstance(error, session.NothingToRun) else 2


def given_inputs(given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"--input: {one!r} is no input: write NAME=VALUE")
        found[name.strip()] = value
    return found


def _variables(option: str, given: tuple[str, ...]) -> dict[str, str]:
    import os

    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals:
            value = os.environ.get(name, "")
        if not name or (not equals and name not in os.environ):
            raise click.UsageError(f"{option}: {name!r} is not set here: write NAME=VALUE, or the name of a variable")
        found[name] = value
    return found
