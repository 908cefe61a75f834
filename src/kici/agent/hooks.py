"""Programs of the operator's that run around jobs, outside the sandbox, as the agent's user.

`KICI_HOOKS_DIR` may hold the executables `before-checkout`, `before-job` and `after-job`. Whoever can write there is
the agent, so a directory or file that others could write is refused, at the start and again before each run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from kici.agent.errors import PreparationFailed, SettingsInvalid
from kici.subprocesses import started
from kici.wire.agent import Dispatch
from kici.wire.context import JobContext

log = structlog.get_logger(__name__)

BEFORE_CHECKOUT, BEFORE_JOB, AFTER_JOB = "before-checkout", "before-job", "after-job"
NAMES = (BEFORE_CHECKOUT, BEFORE_JOB, AFTER_JOB)
MAX_OUTPUT_BYTES = 65_536
"""Of one run; what is more is read and dropped."""
_LAST_S = 1.0
"""For output that is still in the pipe when a hook has ended, which something that it started may hold open."""
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ")


class Hooks:
    """Raises `SettingsInvalid` where hooks could be written by others: jobs without a sandbox are the agent's user."""

    def __init__(self, directory: Path | None, *, work_dir: Path, timeout_s: float, sandboxed: bool) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        if directory is None:
            return
        if not directory.is_absolute() or not directory.is_dir():
            raise SettingsInvalid(f"KICI_HOOKS_DIR is {str(directory)!r}: give the absolute path of a directory")
        if directory.resolve().is_relative_to(work_dir.resolve()):
            raise SettingsInvalid(f"KICI_HOOKS_DIR is below the work directory {work_dir}: move it elsewhere")
        mine = directory.stat().st_uid == os.geteuid() or os.geteuid() == 0
        if not sandboxed and mine:
            raise SettingsInvalid(
                "KICI_HOOKS_DIR is set and there is no sandbox: jobs could change the hooks, as the agent's own user."
                " Use a sandbox (KICI_SANDBOX=true), or a directory of root's under an agent that is not root"
            )
        for name in NAMES:
            if problem := self._problem(name):
                raise SettingsInvalid(f"KICI_HOOKS_DIR cannot be used: {problem}")

    def has(self, name: str) -> bool:
        return self._directory is not None and os.path.lexists(self._directory / name)

    async def before(self, name: str, about: Mapping[str, str], say: Callable[[str], None]) -> None:
        """One that is there. Its output goes to `say`. Raises `PreparationFailed` when it fails."""
        say(f"running the operator's hook {name}")
        if problem := await self._run(name, about, say):
            raise PreparationFailed(f"the operator's hook {name} {problem}")

    async def after(self, about: Mapping[str, str], clean: Callable[[str], str]) -> None:
        """Never raises: a failure is told in the agent's log, and so is the output, made fit for it by `clean`."""
        if self.has(AFTER_JOB):
            problem = await self._run(
                AFTER_JOB, about, lambda line: log.info("hook says", hook=AFTER_JOB, text=clean(line))
            )
            if problem:
                log.error("the operator's hook failed", hook=AFTER_JOB, reason=problem)

    async def _run(self, name: str, about: Mapping[str, str], say: Callable[[str], None]) -> str:
        """What went wrong; empty = nothing. None of its session's processes is left."""
        assert self._directory
        if problem := self._problem(name):
            return f"was not run: {problem}"
        kept = {variable: os.environ[variable] for variable in _KEPT if variable in os.environ}
        # A pipe of our own: asyncio's would keep `wait` waiting for whatever a hook has left running.
        async with contextlib.AsyncExitStack() as running:
            read, write = os.pipe()
            try:
                process = await running.enter_async_context(
                    started(
                        str(self._directory / name),
                        cwd="/",
                        env=kept | {"KICI_HOOK": name} | {key: value.replace("\0", "") for key, value in about.items()},
                        stdin=asyncio.subprocess.DEVNULL,
                        stdout=write,
                        stderr=write,
                        start_new_session=True,
                    )
                )
            except OSError as error:
                os.close(read)
                return f"could not be started: {error.strerror}"
            except asyncio.CancelledError:
                os.close(read)
                raise
            finally:
                os.close(write)
            reading = asyncio.create_task(_pass_on(read, say))
            try:
                async with asyncio.timeout(self._timeout_s):
                    code = await process.wait()
                await asyncio.wait([reading], timeout=_LAST_S)
            except TimeoutError:
                return f"took longer than {self._timeout_s:g} s (KICI_HOOK_TIMEOUT_S)"
            finally:
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await reading
        if code < 0:
            return f"was killed by signal {-code}"
        return f"failed with exit code {code}" if code else ""

    def _problem(self, name: str) -> str:
        """Why it is not to be run; empty = it may, or is not there."""
        assert self._directory
        place = self._directory.resolve()
        for directory in (place, *place.parents):
            about = directory.stat()
            shared = about.st_mode & 0o022 and not (directory != place and about.st_mode & stat.S_ISVTX)
            if shared or about.st_uid not in (0, os.geteuid()):
                return f"{directory} can be written by others than root and the agent's user"
        if not self.has(name):
            return ""
        about = (place / name).lstat()
        if not stat.S_ISREG(about.st_mode):
            return f"{place / name} is no regular file"
        if about.st_mode & 0o022 or about.st_uid not in (0, os.geteuid()):
            return f"{place / name} can be written by others than root and the agent's user"
        if not os.access(place / name, os.X_OK):
            return f"{place / name} is not executable"
        return ""


def about_job(dispatch: Dispatch, known: JobContext | None, workspace: Path) -> dict[str, str]:
    """What a hook is told in its environment. `known` is None where the job ended before its context came."""
    told = {
        "KICI_RUN_ID": dispatch.run_id,
        "KICI_JOB_ID": dispatch.job_id,
        "KICI_ATTEMPT": str(dispatch.attempt),
        "KICI_WORKFLOW": dispatch.workflow,
        "KICI_JOB_NAME": dispatch.name,
        "KICI_SHA": dispatch.checkout.sha,
        "KICI_WORKSPACE": str(workspace),
    }
    if known is not None:
        event = known.event
        told |= {
            "KICI_REPO": event.repo,
            "KICI_REF": dispatch.checkout.ref or event.ref,
            "KICI_TRUST": event.trust.value,
        }
    return told


async def _pass_on(descriptor: int, say: Callable[[str], None]) -> None:
    """Line by line, the first `MAX_OUTPUT_BYTES`; the rest is dropped, which is said. Closes the descriptor."""
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(descriptor, "rb")
    )
    size, rest = 0, b""
    try:
        while piece := await stream.read(16_384):
            if size >= MAX_OUTPUT_BYTES:
                continue
            size += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                say(line.decode(errors="replace"))
            if size >= MAX_OUTPUT_BYTES:
                rest += f" (more than {MAX_OUTPUT_BYTES:,} bytes of output: the rest is left out)".encode()
    finally:
        transport.close()
        if rest:
            say(rest.decode(errors="replace"))
