"""`python -m tests.examples [--only NAME,NAME] [--here] [--agent]`: compile, preview and run each example.

Each is copied to a repository of its own and does what its `example.toml` says, by `kici run local` and through a real
`kici up`. The last line is `examples N ran here H on an agent A failed F`. A program that an example needs and that is
not installed is told by name; in CI that is a failure.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import structlog

from tests.examples import compare, expectation, on_agent
from tests.examples.copy import Copy, Failed
from tests.examples.expectation import Example, Place

EXAMPLES = Path(__file__).parents[2] / "examples"
AT_ONCE = 2
SHOWN = 4_000
"""Characters of a failure: it may carry the logs of a coordinator and an agent."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make examples")
    parser.add_argument("--only", default="", help="names of examples, separated by commas")
    parser.add_argument("--here", action="store_true", help="only by `kici run local`")
    parser.add_argument("--agent", action="store_true", help="only on an agent")
    options = parser.parse_args()
    names = [path.parent.name for path in sorted(EXAMPLES.glob("*/example.toml"))]
    only = {name for name in options.only.split(",") if name}
    if unknown := only - set(names):
        print(f"there is no example {', '.join(sorted(unknown))}; there are {', '.join(names)}")
        return 2
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    places: list[Place] = [place for place in ("here", "agent") if getattr(options, place)] or ["here", "agent"]
    return asyncio.run(_Trial(places).run([name for name in names if not only or name in only]))


class _Trial:
    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._ran: Counter[Place] = Counter()
        self._failed: set[str] = set()

    async def run(self, names: Sequence[str]) -> int:
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(self._example(name))
        here, agent, failed = self._ran["here"], self._ran["agent"], len(self._failed)
        print(f"examples {len(names)} ran here {here} on an agent {agent} failed {failed}", flush=True)
        return 1 if failed else 0

    async def _example(self, name: str) -> None:
        async with self._turns:
            example = expectation.read(EXAMPLES / name)
            missing = [tool for tool in example.needs_tools if shutil.which(tool) is None]
            if missing:
                self._say(name, f"not run: {', '.join(missing)} is not installed")
                if os.environ.get("CI") == "true":
                    self._failed.add(name)
                return
            for place in self._places:
                if place in example.where:
                    await self._place(name, example, place)
                elif place == "agent":
                    self._say(name, f"agent  not run: {example.not_on_an_agent}")

    async def _place(self, name: str, example: Example, place: Place) -> None:
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="kici-example-") as base:
                copy = Copy(EXAMPLES / name, Path(base) / name)
                await copy.make(example)
                work = self._here(copy, example) if place == "here" else self._agent(copy, example)
                problems = [problem async for problem in work]
        except (Failed, AssertionError, TimeoutError) as error:
            problems = [(str(error) or type(error).__name__)[:SHOWN]]
        took = f"{time.monotonic() - began:.1f} s"
        if problems:
            self._failed.add(name)
            self._say(name, f"{place:<6} FAILED  {took}", *problems)
        else:
            self._ran[place] += 1
            self._say(name, f"{place:<6} ok  {took}")

    async def _here(self, copy: Copy, example: Example) -> AsyncIterator[str]:
        for preview in example.previews:
            for problem in compare.of_preview(preview, await copy.preview(preview)):
                yield f"preview {' '.join(preview.options)}: {problem}"
        for run in example.runs:
            if not run.where or "here" in run.where:
                for problem in compare.of_run(run, await copy.run_here(run)):
                    yield f"{run.event} of {run.workflow}: {problem}"

    async def _agent(self, copy: Copy, example: Example) -> AsyncIterator[str]:
        async with on_agent.running(example) as up:
            for run in example.runs:
                if not run.where or "agent" in run.where:
                    for problem in compare.of_run(run, await on_agent.run(up, copy, run)):
                        yield f"{run.event} of {run.workflow}: {problem}"

    def _say(self, name: str, line: str, *more: str) -> None:
        print("\n".join((f"{name:<18} {line}", *(f"    {one}" for one in more))), flush=True)


if __name__ == "__main__":
    sys.exit(main())
