"""`kici-agent`: settings from the environment, one connection, jobs until told to stop."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Sequence

import msgspec
import structlog

import kici
from kici import settings_names
from kici.agent import ca_bundle, facts, job_disk, job_limits, own_id, own_log, workspace
from kici.agent.attempts import Attempts, Identity
from kici.agent.connection import Connection
from kici.agent.dependencies import Dependencies, clear_unfinished
from kici.agent.disk import Disk
from kici.agent.drain import Drain
from kici.agent.endpoints import Endpoints, State, listening
from kici.agent.error_groups import leaves
from kici.agent.errors import SettingsInvalid, TurnedAway
from kici.agent.hooks import Hooks
from kici.agent.job import Workshop
from kici.agent.mirrors import Mirrors
from kici.agent.outbox import Outbox
from kici.agent.sandbox.choose import choose
from kici.agent.settings import Settings, load
from kici.agent.silence import Silence
from kici.agent.standby import Standby
from kici.agent.trash import Trash
from kici.errors import KiciError

log = structlog.get_logger(__name__)

REMOVE_S = 10.0
"""At the end, for removing what jobs have left. The next agent removes the rest."""

NOT_WANTED = 77
"""Exit code (`EX_NOPERM`): starting again mends nothing."""

USAGE = """usage: kici-agent [--version] [--help]
       kici-agent check [--json]

Runs jobs of a kici orchestrator: without arguments, everything is set in the environment. `check`, with the same
environment, tells hop by hop whether the agent would work here, and for what fails the way out.

  KICI_ORCHESTRATOR_URL    ws://host:4000 (required)
  KICI_AGENT_TOKEN         or KICI_AGENT_TOKEN_FILE
  KICI_AGENT_ID            default: <hostname>-<8 hex digits>, kept in the work directory
  KICI_LABELS              comma list
  KICI_AGENT_SLOTS         jobs side by side (1)
  KICI_SANDBOX             auto, bubblewrap, container, none (auto)
  KICI_SANDBOX_PROFILE     steps, image-build (steps)
  KICI_SANDBOX_ALLOW       image-build: jobs that ask for it may build images
  KICI_SANDBOX_NETWORK     host, isolated (host)
  KICI_STANDBY             false: start no runner ahead of its job (true)
  KICI_SANDBOX_IMAGE       that jobs run in; for the sandbox `container`
  KICI_SANDBOX_PULL        missing, always, never (missing)
  KICI_JOB_MEMORY          of a job's processes together, like 4GiB (no limit)
  KICI_JOB_CPUS            processor time per second, like 1.5 (no limit)
  KICI_JOB_PIDS            processes and threads of a job (4096)
  KICI_JOB_DISK            what a job's directory may hold, like 20GiB (no limit)
  KICI_WORK_DIR            where jobs run
  KICI_CA_BUNDLE           certificate authorities, a PEM file
  KICI_HOOKS_DIR           the operator's before-checkout, before-job, after-job
  KICI_DEPENDENCY_BUILDS   true: packages of workflows may be built (false)
  KICI_MIRRORS             false: keep nothing of repositories for later jobs (true)
  KICI_MAX_LOG_SIZE_BYTES  of one step (10485760)
  KICI_AGENT_HTTP          <port> or <host>:<port> for /health, /ready, /metrics (off)
  KICI_LOG_LEVEL, KICI_LOG_FORMAT

SIGTERM: jobs get 10 s, then they are cancelled. SIGUSR1: jobs finish, then the agent ends.
Exit codes: 0 asked to leave, 1 cannot start or go on, 2 wrong arguments, 77 the orchestrator will not have this agent.
Of `check`: 0 nothing failed, 1 something did, 2 wrong arguments.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given:
        return _answer(given)
    try:
        settings = load(os.environ)
        if settings.ca_bundle:
            ca_bundle.check(settings.ca_bundle)
            ca_bundle.use(settings.ca_bundle, os.environ)
        own_log.configure(settings)
        for name, meant in settings_names.misspelt(os.environ, settings_names.AGENT):
            log.warning("a variable that nobody reads", name=name, did_you_mean=meant)
        facts.check_tools()
        if settings.job_disk is not None:
            job_disk.check()
        if settings.die_with_parent:
            _die_with_parent()
        with workspace.claim(settings.work_dir):
            clear_unfinished(settings.work_dir)
            name = settings.agent_id or own_id.kept(settings.work_dir)
            asyncio.run(serve(msgspec.structs.replace(settings, agent_id=name)))
    except KiciError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return NOT_WANTED if isinstance(error, TurnedAway) else 1
    return 0


async def serve(settings: Settings) -> None:
    """Until a signal asks to leave. Raises `TurnedAway`, `SandboxUnavailable`."""
    drain = Drain(drain_s=settings.drain_s)
    drain.listen()
    # Before anything else: a port in use must not be found when a job was taken already.
    listener = listening(settings.agent_http) if settings.agent_http else None
    settings = job_limits.limited(settings)
    choice = choose(settings.sandbox, settings.sandbox_profile, settings.container, settings.sandbox_allow)
    if settings.job_pids is None:
        log.warning("jobs may start as many processes as they like: no control group can be made here")
    log.info("starting", agent=settings.agent_id, version=kici.__version__, sandbox=choice.sandbox.name, why=choice.why)
    if choice.fallback:
        log.warning("jobs are less protected than they could be", missing=choice.fallback)
    silence = Silence()
    outbox = Outbox(silence.clock)
    sandboxed = choice.sandbox.name != "none"
    dependencies = Dependencies(settings, sandboxed=sandboxed)
    mirrors = Mirrors(settings, sandboxed=sandboxed)
    hooks = Hooks(
        settings.hooks_dir, work_dir=settings.work_dir, timeout_s=settings.hook_timeout_s, sandboxed=sandboxed
    )
    standby = Standby(settings, choice.sandbox)
    shop = Workshop(settings, choice, outbox, silence, standby, dependencies, mirrors, hooks)
    identity = Identity(
        boot_id=secrets.token_hex(8),
        labels=(*settings.labels, *facts.automatic_labels(choice)),
        facts=facts.facts(choice),
    )
    trash = Trash(settings.work_dir)
    disk = Disk(
        settings.work_dir,
        min_free_bytes=settings.min_free_bytes,
        min_free_inodes=settings.min_free_inodes,
        caches=(dependencies, mirrors),
        left=lambda: trash.left,
        on_change=lambda: connection.beat(),
    )
    attempts = Attempts(identity, shop, disk=disk.look)
    connection = Connection(settings.websocket_url, attempts, outbox, silence)

    def changed() -> None:
        trash.wake()
        connection.beat()

    attempts.on_change = changed

    def state() -> State:
        return State(
            agent_id=settings.agent_id,
            connected=connection.connected,
            draining=attempts.draining,
            slots=settings.agent_slots,
            running=attempts.running,
            ended=attempts.ended,
        )

    try:
        async with asyncio.TaskGroup() as group:
            services = [group.create_task(one.run()) for one in (connection, attempts, standby, trash, disk)]
            if listener is not None:
                services.append(group.create_task(Endpoints(listener, state).run()))
            await drain.run(attempts, outbox.empty())
            await connection.leave("drained")
            await trash.settle(REMOVE_S)
            for service in services:
                service.cancel()
    except ExceptionGroup as errors:
        raise leaves(errors)[0] from errors
    log.info("stopped")


def _answer(arguments: Sequence[str]) -> int:
    match arguments:
        case ["--version"]:
            print(f"kici-agent {kici.__version__}")  # noqa: T201
            return 0
        case ["--help" | "-h"]:
            print(USAGE, end="")  # noqa: T201
            return 0
        case ["check"] | ["check", "--json"]:
            from kici.agent.check import command  # a running agent does without it

            return command.check(os.environ, as_json="--json" in arguments)
        case ["check", "--help" | "-h"]:
            print(USAGE, end="")  # noqa: T201
            return 0
        case _:
            unknown = arguments[-1 if arguments[0] == "check" else 0]
            print(f"error: unknown argument {unknown!r}\n\n{USAGE}", end="", file=sys.stderr)  # noqa: T201
            return 2


def _die_with_parent() -> None:
    """Leave when the process that started us is gone: for `kici up`, which may be killed."""
    import ctypes  # nobody else needs it

    set_parent_death_signal = 1
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent or parent == 1:
        raise SettingsInvalid("KICI_DIE_WITH_PARENT is set, and the process that started the agent is already gone")


if __name__ == "__main__":
    raise SystemExit(main())
