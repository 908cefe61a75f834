from __future__ import annotations

from typing import Any

import pytest

import kici
from kici import DefinitionError, job, manual, registry, workflow

anything: Any = kici
URL = "https://packages.example.com/simple"
only = job("a", runs_on="linux", steps=["true"])


def test_a_registry_names_its_address_and_the_secret() -> None:
    made = workflow("ci", on=manual(), jobs=[only], registries=registry(URL, token_secret="env:TOKEN", name="inner"))
    assert [(one.url, one.token_secret, one.name) for one in made.registries] == [(URL, "TOKEN", "inner")]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (lambda: anything.registry("http://h/x", token_secret="T"), "not encrypted"),
        (lambda: anything.registry(5, token_secret="T"), "not text"),
        (lambda: anything.registry(URL, token_secret="production:T"), 'write token_secret="NAME"'),
        (lambda: anything.registry(URL, token_secret="T", name="a b"), "name is 'a b'"),
        (lambda: anything.workflow("ci", jobs=[only], registries=[URL]), "is none: write registry"),
        (
            lambda: anything.workflow("ci", jobs=[only], registries=[registry(URL, token_secret="T")] * 2),
            "stands there twice",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_write(written: Any, said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        written()


def test_a_token_in_the_place_of_a_name_or_in_an_address_is_not_repeated() -> None:
    token = "pypi-AgEIcHlwaS5vcmc-x"
    for url, secret in ((URL, token), (f"https://me:{token}@h/simple", "T")):
        with pytest.raises(DefinitionError) as error:
            registry(url, token_secret=secret)
        assert token not in str(error.value)
