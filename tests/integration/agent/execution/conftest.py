from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from kici.agent.execution import Execution
from kici.agent.sandbox.bubblewrap import Bubblewrap
from kici.agent.sandbox.contract import BoxSpec, Limits, Sandbox
from kici.agent.sandbox.none import NoSandbox
from kici.engine.events import Event, EventType
from kici.engine.lockfile import LockJob, LockStep
from kici.lowering.jobs import lowered_job
from kici.wire.context import JobContext
from kici.wire.runner import JobEnded, Start, StepEnded

SECONDS = 30
SANDBOXES: dict[str, Callable[[], Sandbox]] = {"none": NoSandbox, "bubblewrap": Bubblewrap}
PUSH = Event(EventType.PUSH, branch="main", sha="a" * 40, repo="acme/app")


class Heard:
    """A sink that keeps what it hears, and lets tests wait for it."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []
        self.ended: dict[int, StepEnded] = {}
        self.log: dict[int, bytearray] = {}
        self.masked: list[str] = []
        self.artifacts: dict[str, bytes] = {}
        self.remarks: list[tuple[Any, ...]] = []
        self.summaries: list[tuple[int, str]] = []
        self.secrets: dict[str, str] = {}
        self.events: dict[str, tuple[str, Any]] = {}
        self.caches: dict[str, bytes] = {}
        """In the order in which they were saved."""
        self.slow: Callable[[], Any] | None = None
        self._changed = asyncio.Event()

    async def step_started(self, index: int, attempt: int) -> None:
        self.steps.append((index, attempt, "started"))
        self._changed.set()

    async def step_ended(self, ended: StepEnded) -> None:
        self.steps.append((ended.index, ended.attempt, ended.status))
        self.last = ended
        self.ended[ended.index] = ended
        self._changed.set()

    async def output(self, index: int, data: bytes) -> None:
        self.log.setdefault(index, bytearray()).extend(data)
        self._changed.set()
        if self.slow is not None:
            await self.slow()

    def mask(self, value: str) -> None:
        self.masked.append(value)

    def hide(self, text: str) -> str:
        for value in self.masked:
            text = text.replace(value, "***")
        return text

    async def upload(self, name: str, data: AsyncIterator[bytes]) -> None:
        self.artifacts[name] = b"".join([piece async for piece in data])

    async def download(self, name: str) -> AsyncGenerator[bytes, None]:
        yield self.artifacts[name]

    def annotated(self, index: int, level: str, message: str, file: str, line: int) -> None:
        self.remarks.append((index, level, message, file, line))

    def summarized(self, index: int, markdown: str) -> None:
        self.summaries.append((index, markdown))

    async def secret_output(self, name: str, value: str) -> None:
        self.secrets[name] = value

    async def emit(self, name: str, payload: Any, key: str) -> str:
        self.events.setdefault(key, (name, payload))
        return f"event-{list(self.events).index(key)}"

    async def cache_fetch(self, key: str, restore: tuple[str, ...]) -> tuple[str, AsyncGenerator[bytes, None]] | None:
        async def data(entry: bytes) -> AsyncGenerator[bytes, None]:
            yield entry

        for wanted in (key, *restore):
            for name in reversed(self.caches):
                if name == wanted or (wanted != key and name.startswith(wanted)):
                    return name, data(self.caches[name])
        return None

    async def cache_save(self, key: str, data: AsyncIterator[bytes]) -> None:
        self.caches.setdefault(key, b"".join([piece async for piece in data]))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_logged(self, text: str) -> None:
        await self.until(lambda: text in self.text)

    @property
    def text(self) -> str:
        return b"".join(bytes(self.log[index]) for index in sorted(self.log)).decode(errors="replace")

    @property
    def ends(self) -> list[str]:
        return [status for _, _, status in self.steps if status != "started"]


class Jobs:
    """Runs jobs of a workflow that a test writes."""

    def __init__(self, base: Path, sandbox: Sandbox) -> None:
        self.root = base
        self.sandbox = sandbox
        self.sink = Heard()
        self.limits = Limits()
        for name in ("src", "kici", "tmp", "home"):
            (base / name).mkdir()

    def write(self, source: str) -> None:
        path = self.root / "kici" / "workflows" / "ci.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("from kici import Ctx, Retry, job, step, workflow\n" + dedent(source))

    @contextlib.asynccontextmanager
    async def prepared(self) -> AsyncIterator[Execution]:
        execution = Execution(self.sandbox, BoxSpec(0, self.root, limits=self.limits))
        try:
            async with asyncio.timeout(SECONDS):
                await execution.prepare()
            yield execution
        finally:
            async with asyncio.timeout(SECONDS):
                await execution.close()

    def start(self, execution: Execution, job: LockJob, **facts: Any) -> Start:
        context = JobContext(
            run_id="run-1", job_id="job-1", attempt=1, workflow="ci", job=job.name, name=job.name,
            event=facts.pop("event", PUSH), **facts,
        )  # fmt: skip
        inside = execution.path
        return Start(
            root=inside(self.root / "src"),
            kici_dir=inside(self.root / "kici"),
            module="workflows/ci.py",
            export="ci",
            context=context,
            job=job,
            env={"PATH": os.environ["PATH"], "HOME": inside(self.root / "home"), "TMPDIR": inside(self.root / "tmp")},
            tmp=inside(self.root / "tmp"),
        )

    async def run(self, source: str, *steps: str | LockStep, job: str = "build", **options: Any) -> JobEnded:
        facts = options.pop("facts", {})
        self.write(source)
        async with self.prepared() as execution, asyncio.timeout(SECONDS):
            start = self.start(execution, lock_job(job, steps, **options), **facts)
            return await execution.run(start, sink=self.sink)

    async def run_whole(
        self,
        source: str,
        *,
        cancel_at: str = "",
        cancel_when: asyncio.Event | None = None,
        force_at: str = "",
        **facts: Any,
    ) -> JobEnded:
        """The first job of the workflow `ci`, lowered as `kici compile` does it.

        With `cancel_at` it is cancelled as soon as that is logged, with `cancel_when` then; with `force_at` it is
        cancelled twice, and once more, by force, when that is logged.
        """
        self.write("from kici import cache, changed, hook, parallel, rule, setup, skip_if\n" + dedent(source))
        names: dict[str, Any] = {}
        exec((self.root / "kici/workflows/ci.py").read_text(), names)
        workflow = names["ci"]
        locked = lowered_job(workflow.jobs[0], workflow, lambda location: None)
        self.names = [step.name for step in locked.steps]
        async with self.prepared() as execution, asyncio.timeout(SECONDS):
            running = asyncio.create_task(execution.run(self.start(execution, locked, **facts), sink=self.sink))
            if cancel_at:
                await self.sink.until_logged(cancel_at)
            if cancel_when:
                await cancel_when.wait()
            if cancel_at or cancel_when:
                execution.cancel("nobody wants it")
            if force_at:
                execution.cancel("again")
                await self.sink.until_logged(force_at)
                execution.cancel("now", force=True)
            return await running

    @property
    def statuses(self) -> dict[str, str]:
        """Of every entry of the job, its last."""
        return {self.names[index]: status for index, _, status in self.sink.steps if status != "started"}


def lock_job(name: str, steps: Sequence[str | LockStep], **options: Any) -> LockJob:
    locked = tuple(LockStep(step) if isinstance(step, str) else step for step in steps)
    return LockJob(name, locked or (LockStep(name),), ("linux",), **options)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Not pytest's tmp_path: that one only its own user may enter."""
    path = Path(tempfile.mkdtemp(prefix="kici-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def jobs(request: pytest.FixtureRequest, directory: Path) -> Jobs:
    """Without a sandbox, unless a test says otherwise."""
    return Jobs(directory, SANDBOXES[getattr(request, "param", "none")]())
