"""The agent's slots, and in each free one a place that stands ready: an empty workspace, a box, a runner that waits.

A runner takes some tens of milliseconds to start; nearly all of that is over when a dispatch comes. A place serves one
job and is thrown away: what a job leaves in its runner, its box or its directory no other job meets. Until it is handed
over nothing of any job is in it. The next one is begun when the job before has left nothing behind, so it takes no
time from a job in the same slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial

import structlog

from kici.agent import workspace
from kici.agent.backoff import delays
from kici.agent.errors import PreparationFailed
from kici.agent.execution import Execution
from kici.agent.sandbox.contract import BoxSpec, Sandbox
from kici.agent.settings import Settings
from kici.agent.workspace import Owner
from kici.errors import KiciError

log = structlog.get_logger(__name__)


class Place:
    """A workspace and the runner that is started around it at once. For one job, and always closed. May be half made.

    Raises `DiskFull`, `OSError`.
    """

    def __init__(self, settings: Settings, sandbox: Sandbox, slot: int) -> None:
        uid = sandbox.owner(slot)
        self._directory = ExitStack()
        self.space = self._directory.enter_context(
            workspace.opened(settings.work_dir, slot, None if uid is None else Owner(uid, uid))
        )
        spec = BoxSpec(slot, self.space.root, network=settings.sandbox_network == "host", limits=settings.limits)
        self._execution_in = partial(Execution, spec=spec, disk_bytes=settings.job_disk)
        self.execution = self._execution_in(sandbox)
        self.taken = asyncio.Event()
        self._starting = asyncio.create_task(self.execution.prepare())
        self._closing: asyncio.Task[None] | None = None

    @property
    def is_whole(self) -> bool:
        """False once it is being closed, its runner is stopped or does not answer, or something has removed its
        directory: one in `/tmp` may be tidied away."""
        space = self.space
        parts = (space.root, space.src, space.kici, space.packages, space.tmp, space.home)
        return self._closing is None and all(part.is_dir() for part in parts) and not self.execution.is_silent

    async def ready(self) -> None:
        """Wait until the runner waits for its job. Raises `PreparationFailed`."""
        try:
            await asyncio.shield(self._starting)
        except KiciError as error:
            raise PreparationFailed(f"the runner could not be started: {error}") from error

    async def remake(self, sandbox: Sandbox) -> None:
        """Put a box of another sandbox in place of the one that stood ready, around the same directory: no process of
        any job has been in either. Raises `PreparationFailed`."""
        await self.vacate()
        self.execution = self._execution_in(sandbox)
        self._starting = asyncio.create_task(self.execution.prepare())
        await self.ready()

    async def lost(self) -> str:
        """Wait until the runner is gone, or could not be started; why."""
        try:
            await asyncio.shield(self._starting)
        except (KiciError, OSError) as error:
            return str(error)
        return await self.execution.lost()

    async def vacate(self) -> None:
        """No process is left in it. Safe at any time, and again."""
        self._starting.cancel()
        await asyncio.wait([self._starting])
        with suppress(asyncio.CancelledError, KiciError, OSError):
            self._starting.result()
        await self.execution.close()

    async def close(self) -> None:
        """Nothing is left of it. May be called by several tasks at once; cancelling one does not stop it."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        with self._directory:
            await self.vacate()


class _Slot:
    def __init__(self, number: int) -> None:
        self.number = number
        self.free = asyncio.Event()
        self.free.set()
        self.place: Place | None = None
        """That stands ready, or will soon."""


class Standby:
    """A service: `run` keeps places ready. Jobs `take` one each, whether or not it runs."""

    def __init__(self, settings: Settings, sandbox: Sandbox) -> None:
        self._settings = settings
        self._sandbox = sandbox
        self._slots = [_Slot(number) for number in range(settings.agent_slots)]
        self._free: asyncio.Queue[_Slot] = asyncio.Queue()
        self._retired = asyncio.Event()
        for slot in self._slots:
            self._free.put_nowait(slot)

    @asynccontextmanager
    async def take(self) -> AsyncIterator[Place]:
        """A place for one job, of the slot that has been free for longest; waits while there is none.

        Raises `DiskFull`.
        """
        slot = await self._free.get()
        slot.free.clear()
        try:
            place = slot.place
            if place is not None and not place.is_whole:
                await place.close()
                place = None
            slot.place = None
            place = place or self._make(slot)
            place.taken.set()
            try:
                yield place
            finally:
                await place.close()
        finally:
            slot.free.set()
            self._free.put_nowait(slot)

    def retire(self) -> None:
        """Make no more ahead, and leave none that nobody has taken: the agent drains."""
        self._retired.set()

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                keepers = [group.create_task(self._keep(slot)) for slot in self._slots if self._settings.standby]
                await self._retired.wait()
                for keeper in keepers:
                    keeper.cancel()
        finally:
            for slot in self._slots:
                if slot.place is not None:
                    await slot.place.close()

    async def _keep(self, slot: _Slot) -> None:
        pauses = delays()
        while True:
            await slot.free.wait()
            if not slot.free.is_set():  # taken before we woke up
                continue
            reason = await self._stand(slot)
            if not reason:
                pauses = delays()
                continue
            pause = next(pauses)
            log.warning("a standby runner is gone", slot=slot.number, reason=reason, next_in_s=round(pause, 1))
            await asyncio.sleep(pause)

    async def _stand(self, slot: _Slot) -> str:
        """Keep one place ready until a job takes it (""), or it is lost: why."""
        try:
            place = slot.place = self._make(slot)
        except (KiciError, OSError) as error:
            return str(error)
        watches = [asyncio.create_task(place.taken.wait()), asyncio.create_task(place.lost())]
        try:
            await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            if place.taken.is_set():
                return ""
            reason = str(watches[1].result())
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
        await place.close()
        if slot.place is place:
            slot.place = None
        return reason

    def _make(self, slot: _Slot) -> Place:
        return Place(self._settings, self._sandbox, slot.number)
