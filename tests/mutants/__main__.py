"""`python -m tests.mutants [-j N] [--only name,name] [--list]`: take each fence out and see which test notices.

Each mutation is applied to a copy of the tree, and the tests that guard it are run. The last line is
`mutants N survived 0`; everything else is a failure, also a mutation that no longer fits the code, and tests that fail
without any mutation.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from tests.mutants import catalogue
from tests.mutants.mutation import Mutation, Stale
from tests.mutants.workbench import Workbench
from tests.support import postgres


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants")
    parser.add_argument("-j", "--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="names of mutations, separated by commas")
    parser.add_argument("--list", action="store_true", help="say what there is, and do nothing")
    options = parser.parse_args()
    only = {name for name in options.only.split(",") if name}
    chosen = [one for one in catalogue.MUTATIONS if not only or one.name in only]
    if unknown := only - {one.name for one in chosen}:
        print(f"there is no mutation {', '.join(sorted(unknown))}")
        return 2
    if options.list:
        for one in chosen:
            print(f"{one.name}  {one.file}")
        return 0
    with postgres.server() as server, tempfile.TemporaryDirectory(prefix="kici-mutants-") as folder:
        return _Trial(chosen, options.jobs, Path(folder), server.url).run()


class _Trial:
    def __init__(self, mutations: Sequence[Mutation], jobs: int, folder: Path, database_url: str) -> None:
        self._mutations = mutations
        self._jobs = jobs
        self._benches: SimpleQueue[Workbench] = SimpleQueue()
        for number in range(jobs):
            self._benches.put(Workbench(folder / str(number), database_url))
        self._printing = threading.Lock()
        self.wrong = 0
        self.killed = 0

    def run(self) -> int:
        with ThreadPoolExecutor(self._jobs) as pool:
            list(pool.map(self._without_mutation, self._shares()))
            if not self.wrong:
                list(pool.map(self._with_mutation, self._mutations))
        survived = len(self._mutations) - self.killed
        print(f"mutants {len(self._mutations)} survived {survived}", flush=True)
        return 1 if self.wrong or survived else 0

    def _shares(self) -> list[list[str]]:
        """All named tests, a share for each workbench, those of one file together."""
        tests = sorted({test for mutation in self._mutations for test in mutation.tests})
        files = sorted({test.partition("::")[0] for test in tests})
        return [
            [test for test in tests if files.index(test.partition("::")[0]) % self._jobs == number]
            for number in range(self._jobs)
        ]

    def _without_mutation(self, tests: Sequence[str]) -> None:
        if not tests:
            return
        with self._bench() as bench:
            outcome = bench.test(tests)
        if outcome.kind != "passed":
            self.wrong += 1
            self._say(f"without any mutation: {outcome.test or 'the tests cannot be run'} {outcome.output}")

    def _with_mutation(self, mutation: Mutation) -> None:
        with self._bench() as bench:
            try:
                outcome = bench.run(mutation)
            except Stale as error:
                self.wrong += 1
                self._say(f"{mutation.name}: STALE: {error}")
                return
        match outcome.kind:
            case "failed":
                self.killed += 1
                self._say(f"{mutation.name}: killed by {outcome.test}")
            case "passed":
                self._say(f"{mutation.name}: SURVIVED {', '.join(mutation.tests)}")
            case "broken":
                self.wrong += 1
                self._say(f"{mutation.name}: BROKEN: {outcome.output}")

    @contextmanager
    def _bench(self) -> Iterator[Workbench]:
        bench = self._benches.get()
        try:
            yield bench
        finally:
            self._benches.put(bench)

    def _say(self, line: str) -> None:
        with self._printing:
            print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
