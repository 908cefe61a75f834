"""A whole job in a box as jobs have it: its runner is started and does one command."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from kici.agent import environment
from kici.agent.errors import PreparationFailed
from kici.agent.execution import Execution
from kici.agent.sandbox.contract import BoxSpec, Limits, Sandbox
from kici.agent.workspace import Workspace
from kici.engine.events import Event, EventType
from kici.engine.lockfile import LockJob, LockStep
from kici.wire.context import JobContext
from kici.wire.runner import JobEnded, Start, StepEnded

_NAME, _COMMAND = "check", "true"
_MODULE = f"""from kici import job, step, workflow
ci = workflow({_NAME!r}, jobs=[job({_NAME!r}, runs_on="linux", steps=[step({_NAME!r}, {_COMMAND!r})])])
"""


async def run(sandbox: Sandbox, space: Workspace, limits: Limits, *, network: bool) -> tuple[float, float, JobEnded]:
    """Seconds until the runner stood ready, and then until the job had ended; how it ended. Nothing of it is left.

    Raises `KiciError`, `OSError`.
    """
    module = space.kici / "workflows" / "check.py"
    module.parent.mkdir(mode=0o755)
    module.write_text(_MODULE)
    module.chmod(0o644)
    module.parent.chmod(0o755)
    execution = Execution(sandbox, BoxSpec(space.slot, space.root, network=network, limits=limits))
    began = time.monotonic()
    try:
        await execution.prepare()
        ready = time.monotonic()
        ended = await execution.run(_start(execution, space), sink=_Nobody())
        return ready - began, time.monotonic() - ready, ended
    finally:
        await execution.close()


def _start(execution: Execution, space: Workspace) -> Start:
    known = JobContext(
        run_id=_NAME, job_id=_NAME, attempt=1, workflow=_NAME, job=_NAME, name=_NAME, event=Event(EventType.PUSH)
    )
    tmp = execution.path(space.tmp)
    return Start(
        root=execution.path(space.src),
        kici_dir=execution.path(space.kici),
        module="workflows/check.py",
        export="ci",
        context=known,
        job=LockJob(_NAME, (LockStep(_NAME, _COMMAND),), ("linux",)),
        env=environment.of_job(
            known, sha="", ref="", home=execution.path(space.home), tmp=tmp, machine=execution.machine()
        ),
        tmp=tmp,
    )


class _Nobody:
    """A sink that keeps nothing: how the job ended is enough."""

    async def step_started(self, index: int, attempt: int) -> None: ...

    async def step_ended(self, ended: StepEnded) -> None: ...

    async def output(self, index: int, data: bytes) -> None: ...

    def hide(self, text: str) -> str:
        return text

    def annotated(self, index: int, level: str, message: str, file: str, line: int) -> None: ...

    def summarized(self, index: int, markdown: str) -> None: ...

    def mask(self, value: str) -> None: ...

    async def upload(self, name: str, data: AsyncIterator[bytes]) -> None:
        raise _refused()

    async def download(self, name: str) -> AsyncGenerator[bytes, None]:
        raise _refused()
        yield b""

    async def cache_fetch(self, key: str, restore: tuple[str, ...]) -> tuple[str, AsyncGenerator[bytes, None]] | None:
        return None

    async def cache_save(self, key: str, data: AsyncIterator[bytes]) -> None:
        raise _refused()

    async def secret_output(self, name: str, value: str) -> None:
        raise _refused()

    async def emit(self, name: str, payload: Any, key: str) -> str:
        raise _refused()


def _refused() -> PreparationFailed:
    return PreparationFailed("a check keeps nothing")
