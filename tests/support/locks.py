"""Lock files for tests, as `kici compile` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kici.engine import lockfile
from kici.engine.lockfile import (
    LockFile,
    LockJob,
    LockNeed,
    LockStep,
    LockWorkflow,
    PushTrigger,
    SourceLocation,
    Trigger,
)


def job(name: str, *, needs: Sequence[str | LockNeed] = (), steps: Sequence[str] = ("run",), **options: Any) -> LockJob:
    return LockJob(
        name=name,
        steps=tuple(LockStep(name=step, command=f"echo {step}") for step in steps),
        runs_on=options.pop("runs_on", ("linux",)),
        needs=tuple(LockNeed(need) if isinstance(need, str) else need for need in needs),
        **options,
    )


def workflow(
    name: str = "ci", *, on: Sequence[Trigger] = (PushTrigger(),), jobs: Sequence[LockJob] = (), **options: Any
) -> LockWorkflow:
    return LockWorkflow(
        name=name,
        source=SourceLocation(f".kici/workflows/{name}.py", 1),
        export=name,
        content_hash="0" * 64,
        triggers=tuple(on),
        jobs=tuple(jobs) or (job("build"),),
        **options,
    )


def lock(*workflows: LockWorkflow) -> bytes:
    return lockfile.encode(LockFile(lockfile.SCHEMA_VERSION, "0" * 64, {}, workflows))
