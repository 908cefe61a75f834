"""How figures are taken: warm up, then value and floor in turn, and the ratio of their medians."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

REPEATS = 7


class Reference(Struct):
    """A floor, or a peer."""

    name: str
    value: float
    version: str | None = None


class Result(Struct, omit_defaults=True):
    name: str
    value: float
    unit: str
    samples: int
    p50: float
    p99: float
    floor: Reference | None = None
    peer: Reference | None = None
    ratio: float | None = None
    limit: float | None = None
    at_least: bool = False
    """The limit is a least ratio (rates), not a greatest one (times)."""
    machine: str = ""

    @property
    def kept(self) -> bool:
        """Whether the figure keeps its limit."""
        figure = self.ratio if self.ratio is not None else self.value
        if self.limit is None:
            return True
        return figure >= self.limit if self.at_least else figure <= self.limit


def machine() -> str:
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def against_floor(
    name: str,
    measure: Callable[[], float],
    floor_name: str,
    floor: Callable[[], float],
    *,
    limit: float,
    unit: str = "ms",
    repeats: int = REPEATS,
) -> Result:
    """Both return one sample in `unit`. They are taken in turn after one warm-up of each."""
    measure()
    floor()
    values, floors = [], []
    for _ in range(repeats):
        floors.append(floor())
        values.append(measure())
    return compare(name, values, floor_name, floors, limit=limit, unit=unit)


def compare(
    name: str,
    values: Sequence[float],
    floor_name: str,
    floors: Sequence[float],
    *,
    limit: float | None,
    unit: str = "ms",
    at_least: bool = False,
) -> Result:
    p50, floor = statistics.median(values), statistics.median(floors)
    return Result(
        name=name,
        value=p50,
        unit=unit,
        samples=len(values),
        p50=p50,
        p99=percentile(values, 0.99),
        floor=Reference(floor_name, floor),
        ratio=p50 / floor,
        limit=limit,
        at_least=at_least,
        machine=machine(),
    )


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def process_ms(argv: Sequence[str], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> float:
    """Wall time of a whole process that must succeed. Its byte code is compiled already after the warm-up."""
    full = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | (env or {})
    started = time.perf_counter()
    done = subprocess.run(argv, cwd=cwd, env=full, capture_output=True, check=False)
    elapsed = (time.perf_counter() - started) * 1_000
    if done.returncode:
        raise RuntimeError(f"{argv[0]} failed with {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}")
    return elapsed


def rss_mb(pid: int) -> float:
    """Resident memory of one process now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no VmRSS")
