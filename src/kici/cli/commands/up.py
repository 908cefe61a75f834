"""`kici up`: everything on this machine, without configuration."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from pathlib import Path

import click

from kici.cli import config as remembered
from kici.cli import stack


@click.command()
@click.option("--data-dir", type=click.Path(path_type=Path), envvar="KICI_DATA_DIR", help="Where all state is kept.")
@click.option("--port", type=click.IntRange(0, 65535), default=4000, show_default=True, help="0 = any free port.")
@click.option("--repository", default="local", show_default=True, help="Name of the repository that it offers.")
@click.option("--slots", type=click.IntRange(1, 64), default=1, show_default=True, help="Jobs that run at once.")
@click.option("--no-agent", is_flag=True, help="Without the local agent.")
@click.option("--json", "as_json", is_flag=True, help="Say where everything is as one line of JSON.")
def up(data_dir: Path | None, port: int, repository: str, slots: int, no_agent: bool, as_json: bool) -> None:
    """Start an orchestrator, its database and an agent; Ctrl-C stops them.

    The first start makes a bare git repository and prints its remote: push there and the workflows run. URL and token
    for the other commands go to ~/.kici/config.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", repository):
        raise click.BadParameter("letters, digits, '.', '_' and '-', at most 100", param_hint="--repository")
    plan = stack.Plan(
        data_dir=(data_dir or default_data_dir()).absolute(),
        port=port,
        repository=repository,
        slots=slots,
        agent=not no_agent,
    )
    asyncio.run(_run(plan, as_json))


def default_data_dir() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "kici"


async def _run(plan: stack.Plan, as_json: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    starting = asyncio.create_task(_serve(plan, as_json))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not starting.done():
            starting.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
    try:
        await starting
    except asyncio.CancelledError:
        click.echo("stopped", err=True)


async def _serve(plan: stack.Plan, as_json: bool) -> None:
    async with stack.Stack(plan, say=lambda text: click.echo(text, err=True)) as running:
        config = remembered.remember(url=running.url, token=running.admin_token())
        if as_json:
            click.echo(
                json.dumps(
                    {
                        "url": running.url,
                        "remote": str(running.remote),
                        "config": str(config),
                        "dataDir": str(plan.data_dir),
                        "logs": str(running.log_dir),
                    }
                )
            )
        else:
            click.echo(_welcome(running, config))
        await running.run()


def _welcome(running: stack.Stack, config: Path) -> str:
    return "\n".join(
        (
            f"kici is up: {running.url}",
            "",
            "  In a repository with workflows (`kici init` makes the first one):",
            f"    git remote add kici {running.remote}",
            "    git push kici HEAD:main",
            "",
            "  kici runs list           what ran",
            "  kici runs logs -f RUN    its logs, live",
            f"  {config}   URL and token of the commands above",
            f"  {running.log_dir}   logs of the orchestrator and the agent",
            "",
            "Ctrl-C stops it.",
        )
    )
