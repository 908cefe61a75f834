"""`make soak MINUTES=n [SEED=s]`: the same as the test, for as long as somebody wants to wait."""

from __future__ import annotations

import argparse
import secrets
import time

from tests.integration.model.arena import arena, play
from tests.support import postgres

EXAMPLES = 10
"""Between two looks at the clock."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="make soak")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="of an earlier run, to play the same choices again")
    options = parser.parse_args()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"soak: seed {seed}", flush=True)
    began = time.monotonic()
    with postgres.server() as server, arena(server) as place:
        rounds = 0
        try:
            while not rounds or time.monotonic() - began < options.minutes * 60:
                play(place, seed=seed + rounds, examples=EXAMPLES)
                rounds += 1
        finally:
            minutes = (time.monotonic() - began) / 60
            print(f"soak: seed {seed}, {minutes:.1f} minutes, round {rounds}: {place.tally.line()}", flush=True)
        deadlocks = place.database.deadlocks()
        if deadlocks:
            raise SystemExit(f"soak: the database broke {deadlocks} deadlocks: somebody locks in another order")
    print("soak: every law was kept")


if __name__ == "__main__":
    main()
