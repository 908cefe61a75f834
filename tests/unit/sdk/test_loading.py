from __future__ import annotations

from types import ModuleType

import pytest

from kici import DefinitionError, job, manual, workflow
from kici.sdk import loading

A_JOB = job("a", runs_on="linux", steps=["true"])
ONE, TWO, THREE = (workflow(name, on=manual(), jobs=[A_JOB]) for name in ("one", "two", "three"))


@pytest.fixture
def module() -> ModuleType:
    made = ModuleType("workflows.ci")
    vars(made).update(single=ONE, several=[TWO, "no workflow", THREE], pair=(ONE,), named={"x": TWO}, number=5)
    return made


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("workflows/ci.py", "workflows.ci"),
        ("workflows/deploy/prod.py", "workflows.deploy.prod"),
        ("workflows/deploy/__init__.py", "workflows.deploy"),
        ("workflows/größe.py", "workflows.größe"),
    ],
)
def test_a_path_is_a_dotted_name(path: str, name: str) -> None:
    assert loading.module_name(path) == name


@pytest.mark.parametrize("path", ["workflows/ci.v2.py", "workflows/v1.0/ci.py", "workflows/ci.txt"])
def test_a_path_that_python_cannot_name_is_refused(path: str) -> None:
    with pytest.raises(DefinitionError, match=r"rename it so that its only dot is that of \.py"):
        loading.module_name(path)


def test_workflows_are_what_names_lists_and_tuples_hold(module: ModuleType) -> None:
    assert list(loading.exports(module)) == [
        ("single", ONE),
        ("several[0]", TWO),
        ("several[2]", THREE),
        ("pair[0]", ONE),
    ]


def test_every_export_is_found_again(module: ModuleType) -> None:
    for export, found in loading.exports(module):
        assert loading.find(module, export) is found


def test_an_export_that_is_gone_says_what_to_do(module: ModuleType) -> None:
    with pytest.raises(DefinitionError, match=r"workflows\.ci has no workflow at 'old': run `kici compile`"):
        loading.find(module, "old")
