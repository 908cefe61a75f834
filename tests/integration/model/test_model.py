"""What hypothesis plays against the real rules, the real database and real kills, in the short form of a suite run."""

from __future__ import annotations

import secrets

import pytest

from tests.integration.model.arena import arena, play
from tests.support import postgres

FIXED = 20_261_202
EXAMPLES = 3
"""Between two looks at the tally."""
OPERATIONS = 5_000
KILLS = 250
"""At least, of each of the two runs: 10,000 and 500 in a suite run."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [pytest.param(FIXED, id="fixed_seed"), pytest.param(None, id="new_seed")])
def test_what_is_acknowledged_stays_and_nothing_hangs_whenever_a_coordinator_is_killed(
    postgres_server: postgres.Server, seed: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = secrets.randbits(32) if seed is None else seed
    with arena(postgres_server) as place:
        with capsys.disabled():
            print(f"\nmodel: seed {seed}", flush=True)
        while place.tally.operations < OPERATIONS or place.tally.kills < KILLS:
            play(place, seed=seed, examples=EXAMPLES)
            seed += 1
        with capsys.disabled():
            print(f"model: {place.tally.line()}", flush=True)
        assert place.database.deadlocks() == 0
        assert place.tally.operations >= OPERATIONS
        assert place.tally.kills >= KILLS
        assert place.tally.kills_inside >= KILLS / 2
