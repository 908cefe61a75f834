"""The workflow of `bench_transfers`: its jobs take the figures, beside the floors, inside their sandbox."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from kici import Ctx, job, push, step, workflow

WARM_UP = 1
SAMPLES = 5
TREE = Path("tree")
PER_DIRECTORY = 100
FILE_BYTES = 50_000
FLOOR_ARCHIVE = "floor.tar.zst"
FLOOR_TREE = Path("floor-tree")
PACKED = f"tar --create --file=- {{}} | zstd -q -c -3 -T0 > {FLOOR_ARCHIVE}"
UNPACKED = f"zstd -q -d -c {FLOOR_ARCHIVE} | tar --extract --file=- --directory={FLOOR_TREE}"

Figures = dict[str, list[float]]


@step(timeout="15m")
async def cache(ctx: Ctx) -> Figures:
    await asyncio.to_thread(fill_tree, size("files"))
    taken: Figures = {"save": [], "save_floor": [], "restore": [], "restore_floor": []}
    whole = measured(TREE)
    for number in range(WARM_UP + SAMPLES):
        save_floor = await asyncio.to_thread(shell_ms, PACKED.format(TREE))
        use = ctx.cache(f"tree-{number}", str(TREE))
        await use.__aenter__()
        save = await async_ms(use.__aexit__(None, None, None))

        # Nothing is removed meanwhile: while a disk discards what was freed, whoever writes next is slow.
        os.rename(TREE, f"old-{number}")
        FLOOR_TREE.mkdir()
        restore_floor = await asyncio.to_thread(shell_ms, UNPACKED)
        check(FLOOR_TREE / TREE, whole)
        os.rename(FLOOR_TREE, f"floor-{number}")
        use = ctx.cache(f"tree-{number}", str(TREE))
        restore = await async_ms(use.__aenter__())
        check(TREE, whole)
        if number >= WARM_UP:
            keep(taken, save=save, save_floor=save_floor, restore=restore, restore_floor=restore_floor)
    print(f"{whole[1] / 1e6:.0f} MB became {os.path.getsize(FLOOR_ARCHIVE) / 1e6:.0f} MB")
    return taken


@step(timeout="15m")
async def artifact(ctx: Ctx) -> Figures:
    with open("blob", "wb") as blob:
        for _ in range(size("artifact_mb")):
            blob.write(os.urandom(1_000_000))
    taken: Figures = {"artifact": [], "copy": [], "archive": []}
    for number in range(WARM_UP + SAMPLES):
        copy = await asyncio.to_thread(shell_ms, f"cp blob floor-{number}")
        archive = await asyncio.to_thread(shell_ms, PACKED.format("blob"))
        upload = await async_ms(ctx.artifacts.upload(f"blob-{number}", "blob"))
        if number >= WARM_UP:
            keep(taken, artifact=upload, copy=copy, archive=archive)
    if os.path.getsize(FLOOR_ARCHIVE) < os.path.getsize("blob"):
        raise RuntimeError("what should not be compressible was compressed")
    return taken


def size(name: str) -> int:
    return int(json.loads(Path("sizes.json").read_text())[name])


def fill_tree(files: int) -> None:
    """As dependencies are: of three files two are text, and one cannot be compressed. The same tree each time."""
    source = random.Random(20)
    words = [bytes(source.choices(b"etaoinshrdlucmfwypvbgkjqxz_", k=source.randint(2, 12))) for _ in range(20_000)]
    text = b" ".join(source.choices(words, k=6_000_000))
    for number in range(files):
        path = TREE / str(number // PER_DIRECTORY) / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        start = source.randrange(len(text) - FILE_BYTES)
        path.write_bytes(text[start : start + FILE_BYTES] if number % 3 else source.randbytes(FILE_BYTES))


def measured(tree: Path) -> tuple[int, int]:
    """How many files, and their bytes."""
    sizes = [os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(tree) for name in names]
    return len(sizes), sum(sizes)


def check(tree: Path, whole: tuple[int, int]) -> None:
    if (found := measured(tree)) != whole:
        raise RuntimeError(f"{tree} has {found} files and bytes instead of {whole}")


def shell_ms(line: str) -> float:
    os.sync()  # or one would wait for what another one has written
    started = time.perf_counter()
    subprocess.run(["bash", "-c", f"set -o pipefail; {line}"], check=True)
    return (time.perf_counter() - started) * 1_000


async def async_ms(work: Awaitable[Any]) -> float:
    await asyncio.to_thread(os.sync)
    started = time.perf_counter()
    await work
    return (time.perf_counter() - started) * 1_000


def keep(taken: Figures, **samples: float) -> None:
    for name, sample in samples.items():
        taken[name].append(sample)


artifacts = job("artifacts", runs_on="linux", steps=[artifact], timeout="20m")
caches = job("caches", runs_on="linux", steps=[cache], needs=[artifacts], timeout="20m")
transfers = workflow("transfers", on=push(branches="main"), jobs=[artifacts, caches])
