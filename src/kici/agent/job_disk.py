"""How much a job has written into its directory, measured now and then, where no quota of the file system says so.

`du` counts, with the lowest priority: it follows no link, stays on one file system and stands trees of any depth. What
it cannot see is counted beside it: files that the job has unlinked and holds open. A measurement that takes long is
followed by a pause that is longer by as much, so that a job of a million files costs no more than a tenth of a core.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

from kici.agent.errors import SettingsInvalid
from kici.engine.failure import size
from kici.subprocesses import started

MEASURE_S = 5.0
"""Between two measurements, if they are quick."""
PAUSE = 9
"""Times as long as a measurement took is the pause after it, at least."""
MAX_OPEN_FILES = 100_000
"""That are looked at in one measurement."""
_PROGRAMS = ("du", "nice")


def check() -> None:
    """Raises `SettingsInvalid` where nothing can be measured."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        raise SettingsInvalid(f"KICI_JOB_DISK needs {' and '.join(missing)} on PATH: install coreutils")


async def exceeded(directories: Collection[Path], limit_bytes: int, processes: Callable[[], Collection[int]]) -> str:
    """Return when there is more in the directories than the limit: what is told then.

    `processes` of the job, at any time, in a thread. The files of the directories are on one file system.
    """
    while True:
        began = time.monotonic()
        try:
            used = await _on_disk(directories)
        except OSError as error:  # no process or memory is left for the moment, perhaps because of the job
            import structlog  # late: `kici run local` starts without it

            structlog.get_logger(__name__).warning("a job's directory could not be measured", reason=str(error))
            await asyncio.sleep(MEASURE_S)
            continue
        used += await asyncio.to_thread(lambda: _unlinked(processes(), _devices(directories)))
        took_s = time.monotonic() - began
        if used > limit_bytes:
            every_s = max(MEASURE_S, (PAUSE + 1) * took_s)
            return (
                f"the job's directory holds {size(used)}, over its limit of {size(limit_bytes)} (KICI_JOB_DISK,"
                f" measured every {every_s:.0f} s): the job was killed"
            )
        await asyncio.sleep(max(MEASURE_S, PAUSE * took_s))


async def _on_disk(directories: Collection[Path]) -> int:
    """Blocks that are taken, also by what goes meanwhile."""
    async with started(
        *("nice", "-n", "19", "du", "-s", "-c", "-x", "-B1", "--", *map(str, directories)),
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        cwd="/",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    ) as process:
        out, _ = await process.communicate()
    total = out.splitlines()[-1:] or [b""]
    count, _, what = total[0].partition(b"\t")
    return int(count) if what == b"total" and count.isdigit() else 0


def _unlinked(processes: Iterable[int], devices: Collection[int]) -> int:
    """Of files without a name that these processes hold open."""
    found: dict[tuple[int, int], int] = {}
    looked = 0
    for pid in processes:
        with suppress(OSError):  # it has ended, or is not ours to look at
            for descriptor in os.scandir(f"/proc/{pid}/fd"):
                looked += 1
                if looked > MAX_OPEN_FILES:
                    return sum(found.values())
                with suppress(OSError):
                    file = os.stat(descriptor.path)
                    if stat.S_ISREG(file.st_mode) and not file.st_nlink and file.st_dev in devices:
                        found[file.st_dev, file.st_ino] = file.st_blocks * 512
    return sum(found.values())


def _devices(directories: Iterable[Path]) -> set[int]:
    found = set()
    for directory in directories:
        with suppress(OSError):
            found.add(directory.stat().st_dev)
    return found
