"""Where examples take place, and how many of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test

from tests.integration.model.database import Database
from tests.integration.model.lives import zygote
from tests.integration.model.machine import Model
from tests.integration.model.play import Arena, Tally
from tests.support import postgres

STEPS = 80
"""Of one example, before everybody finishes."""


@contextmanager
def arena(server: postgres.Server) -> Iterator[Arena]:
    """A fresh database, and a zygote."""
    clone = postgres.clone(server)
    with asyncio.Runner() as runner:
        url = runner.run(clone.__aenter__())
        try:
            with zygote() as lives:
                database = Database(url)
                try:
                    yield Arena(lives, database, Tally())
                finally:
                    database.close()
        finally:
            runner.run(clone.__aexit__(None, None, None))


def play(arena: Arena, *, seed: int, examples: int) -> None:
    """Raises `AssertionError` with what was done, at the first law that is broken.

    Nothing is shrunk: where a kill falls is up to the machine, so a shorter sequence would prove little.
    """
    model = seeded(seed)(type("Model", (Model,), {"arena": arena}))
    run_state_machine_as_test(
        model,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            verbosity=Verbosity.quiet,  # the error says what was done, in the words of the model
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
