"""A sandbox runs one job's runner so that the job reaches nothing but what is its own. This comment is the contract.

**What a job may see.** Its own directory (`BoxSpec.root`), the system's programs read-only, the interpreter and
packages that kici itself runs on read-only, its own processes. It must not see, whatever its steps do: the agent's
token, environment, memory and files; the host's other files and sockets; another job. It has no capability, cannot get
one, and no descriptor is open in it but the standard streams and the runner's socket. How much of this an
implementation keeps is its strength; `none` keeps little, and says so.

**The life of a box.**

1. The caller makes `root` with the directories `src`, `kici`, `tmp` and `home` in it, empty or not; and `packages`, if
   the job may get packages. Nobody else uses this directory. It must not be replaced while the box lives; it may be
   filled at any time. Steps read `kici` and `packages`, and cannot write there.
2. `start` makes the box around it and starts `python -I -m kici.runner` inside, with `runner_socket` as descriptor 3.
   The caller may close its copy of that socket as soon as `start` has returned. `start` hands `src`, `tmp` and `home`
   over to the user that the steps run as (`owner`); what the caller puts into them later it hands over itself. It
   raises `SandboxUnavailable` if nothing was started.
3. `wait` returns when the runner has ended, any number of times, to any number of callers: the exit code, or minus
   the number of the signal that ended it.
4. `lower` may tighten its limits at any time, also of a job that runs: a box stands before its job is known.
5. `kill` ends every process that the box has ever held, also those that have forked away or called `setsid`, and
   returns when they are gone. It may be called at any time, more than once, by several tasks at once, and after the
   end. It is always called: a box that was not killed is a leak. Cancelling it does not stop the killing.

`start`, `wait` and `kill` are called in the event loop's thread, and that thread outlives the box: some systems tie a
child's life to the thread that started it. If the agent dies, however, the box dies.

Boxes of one sandbox run side by side, one per slot. `start` for a slot is called only after the `kill` of the slot's
box before has returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from kici.errors import KiciError


class SandboxUnavailable(KiciError):
    """The sandbox cannot be used on this machine, or a box could not be started. The message says why."""

    code = "sandbox_unavailable"
    status = 503


class Limits(Struct, frozen=True):
    """What all processes of a box may use together; None = as much as there is."""

    memory_bytes: int | None = None
    cpus: float | None = None
    """Of processor time per second: 0.5 is half of one core."""
    pids: int | None = None
    """Processes and threads."""


class Usage(Struct, frozen=True):
    """What a box has used so far, or had used when it ended. None = nobody could count it here."""

    peak_memory_bytes: int | None = None
    """Without the page cache."""
    out_of_memory_kills: int | None = None
    refused_processes: int | None = None
    """How often a process or thread was one too many."""


class BoxSpec(Struct, frozen=True):
    slot: int
    """From 0. Two boxes that live at the same time differ in it."""
    root: Path
    """Absolute; has `src/` (checkout), `kici/` (verified `.kici`), `packages/` (of the workflow), `tmp/`, `home/`."""
    network: bool = True
    """False = a network namespace of its own, without any interface but loopback."""
    limits: Limits = Limits()


class Box(Protocol):
    @property
    def pid(self) -> int:
        """The process on the host that stands for the box."""

    async def wait(self) -> int: ...

    async def kill(self) -> None: ...

    def path(self, host: Path) -> str:
        """Where a file of `root` stands as seen from inside."""

    def lower(self, limits: Limits) -> Limits:
        """From now on all its processes together may use no more than this; never more than before. What is None, or
        cannot be limited on this machine, stays as it is. Returns what holds now."""

    def usage(self) -> Usage:
        """At any time, also after `kill`. The peak is the highest of what was asked: ask often while it works."""

    def last_words(self) -> str:
        """What was written to standard error before the runner took it over: why a start failed."""


class Sandbox(Protocol):
    @property
    def name(self) -> str: ...

    def machine(self) -> Mapping[str, str]:
        """The environment of the place that steps run in: what of it they get, `agent.environment` says."""

    def owner(self, slot: int) -> int | None:
        """The uid (and gid) that steps of this slot run as; None = the agent's own user."""

    async def start(self, spec: BoxSpec, runner_socket: int) -> Box: ...
