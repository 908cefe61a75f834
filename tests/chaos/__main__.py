"""`python -m tests.chaos`: JOBS, AGENTS, SEED, MINUTES from the environment; KEEP=1 leaves the database."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

import structlog

from tests.chaos.run import Plan, chaos


def main() -> int:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    keep = os.environ.get("KEEP", "") not in ("", "0")
    plan = Plan(
        seed=int(os.environ.get("SEED") or random.randrange(1, 10**6)),
        jobs=int(os.environ.get("JOBS") or 2_000),
        agents=int(os.environ.get("AGENTS") or 20),
        minutes=float(os.environ.get("MINUTES") or 4),
    )
    print(f"chaos: {plan.jobs} jobs, {plan.agents} agents, 2 coordinators; SEED={plan.seed} repeats the order of kills")
    base = Path(tempfile.mkdtemp(prefix="kici-chaos-"))
    base.chmod(0o711)
    figures = None
    try:
        figures = asyncio.run(chaos(base, plan, keep=keep))
        print("\n".join(figures.lines()))
    finally:
        if keep:
            _tell(base)
        elif figures is not None and figures.violations:
            print(f"logs and journals are in {base}")
        else:
            shutil.rmtree(base, ignore_errors=True)
    return int(bool(figures.violations))


def _tell(base: Path) -> None:
    password = (base / "postgres" / "password").read_text()
    print(f"the database: postgresql://kici:{password}@/kici?host={base / 'postgres' / 'run'}  (kept in {base})")


if __name__ == "__main__":
    sys.exit(main())
