"""`kici-orchestrator`: the program. Configured by `KICI_*` variables; the flags only choose what it is."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import uuid
from collections.abc import Coroutine

import click
import msgspec

from kici import __version__


@click.command(help="Run the kici orchestrator. Settings are read from KICI_* environment variables.")
@click.option(
    "--role",
    type=click.Choice(["coordinator", "worker"]),
    envvar="KICI_CLUSTER_ROLE",
    default="coordinator",
    help="What this process is.  [default: coordinator]",
)
@click.version_option(__version__, prog_name="kici-orchestrator")
def main(role: str) -> None:
    from kici.errors import KiciError

    try:
        if role == "worker":
            raise KiciError("the worker role is not there yet: run a coordinator on this host")
        start()
    except KiciError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


def start() -> None:
    """Load the settings and run until a signal comes. Raises `KiciError` where it cannot start."""
    import structlog

    from kici.orchestrator import data_dir, log_output, settings

    loaded, warnings = settings.load(os.environ)
    log_output.configure(loaded.log_level, loaded.log_format)
    log = structlog.get_logger(__name__)
    for sentence in warnings:
        log.warning(sentence)
    if loaded.die_with_parent:
        stop_with_parent()
    loaded = msgspec.structs.replace(
        loaded,
        data_dir=data_dir.choose(loaded, os.environ),
        instance_id=loaded.instance_id or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}",
    )
    log.info("starting", version=__version__, instance=loaded.instance_id, data_dir=str(loaded.data_dir))

    import uvloop

    from kici.orchestrator.app import serve

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(until_signalled(serve(loaded)))
    log.info("stopped")


async def until_signalled(work: Coroutine[None, None, None]) -> None:
    """Run `work`; SIGTERM and SIGINT cancel it, which stops its stages in order. A second signal hurries it."""
    task = asyncio.create_task(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


def stop_with_parent() -> None:
    """Have the kernel send us SIGTERM when the thread that started us ends."""
    import ctypes

    set_parent_death_signal = 1
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)  # it died before the kernel knew


if __name__ == "__main__":
    main()
