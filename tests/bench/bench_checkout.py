"""What an agent adds to git where there is much to check out; the orchestrator is played, everything else is real.

`checkout_ms`: a job with one trivial step in a repository whose commit has 5,000 files of 50 KB that cannot be
compressed, from sending its dispatch to hearing its end. (A gigabyte would take six minutes; what an agent adds weighs
more where there is less.) The floor, in turn with it: plain git fetches that commit from the same address and checks it
out, then bubblewrap starts `true`. The agent's mirror of the repository is taken away before each.

`checkout_warm_ms`: the next job of that commit, which finds the mirror that the one before has left; beside the same
floor, which fetches everything. Nothing is measured until the directory of the job before is gone: an agent removes
it in the background, while a floor removes its own beside the clock.
"""

from __future__ import annotations

import asyncio
import os

from tests.bench.bench_agent_jobs import opened
from tests.bench.harness import Result, compare
from tests.support.kici_repository import KiciRepository

NAMES = ("checkout_ms", "checkout_warm_ms")
FILES, FILE_BYTES, PER_DIRECTORY = 5_000, 50_000, 100
WARM_UP = 1
SAMPLES = 5


def run() -> list[Result]:
    return asyncio.run(measure())


async def measure() -> list[Result]:
    floors, firsts, seconds = [], [], []
    async with opened({}, fill=fill) as place:
        for _ in range(WARM_UP + SAMPLES):
            place.forget()
            floors.append(await asyncio.to_thread(place.floor))
            firsts.append(await place.job("one"))
            await place.rest()
            seconds.append(await place.job("one"))
            await place.rest()
    name = "git fetch + checkout + bwrap true"
    return [
        compare("checkout_ms", firsts[WARM_UP:], name, floors[WARM_UP:], limit=1.3),
        compare("checkout_warm_ms", seconds[WARM_UP:], name, floors[WARM_UP:], limit=1.0),
    ]


def fill(repository: KiciRepository) -> None:
    for number in range(FILES):
        path = repository.root / "data" / str(number // PER_DIRECTORY) / f"{number}.bin"
        if number % PER_DIRECTORY == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(os.urandom(FILE_BYTES))
    repository.git("-c", "core.compression=0", "add", "--all")
    repository.commit()
    repository.git("repack", "-a", "-d", "-q", "--window=0")
