"""`make mutants` takes minutes and is run now and then: that its mutations fit the code is seen at once."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.catalogue import MUTATIONS

PROJECT = Path(__file__).parents[3]


def test_the_text_of_every_mutation_stands_once_in_its_file() -> None:
    counts = {one.name: (PROJECT / one.file).read_text().count(one.old) for one in MUTATIONS}
    assert {name: count for name, count in counts.items() if count != 1} == {}


def test_every_mutation_has_its_own_name_and_tests_that_exist() -> None:
    assert len({one.name for one in MUTATIONS}) == len(MUTATIONS) >= 25
    for one in MUTATIONS:
        for test in one.tests:
            path, _, name = test.partition("::")
            text = (PROJECT / "tests" / path).read_text()
            assert not name or f"def {name.partition('[')[0]}(" in text, (one.name, test)
