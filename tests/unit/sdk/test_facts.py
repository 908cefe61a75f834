from __future__ import annotations

import pytest

from kici.sdk.errors import NoOutput, OutputsOfMany
from kici.sdk.facts import Matrix, Needed, NeededInstance, Output


def instance(name: str, status: str, **outputs: object) -> NeededInstance:
    return NeededInstance(name, status, Matrix({}), outputs)


def test_a_matrix_is_read_by_attribute_and_by_item() -> None:
    matrix = Matrix({"python": "3.11", "keys": "odd"})
    assert (matrix.python, matrix["keys"], dict(matrix)) == ("3.11", "odd", {"python": "3.11", "keys": "odd"})
    with pytest.raises(AttributeError, match="no 'pyton'; it has keys, python"):
        _ = matrix.pyton


def test_the_worst_of_several_instances_counts() -> None:
    needed = Needed([instance("a (1)", "success"), instance("a (2)", "failed"), instance("a (3)", "skipped")])
    assert needed.status == "failed"
    assert [one.name for one in needed] == ["a (1)", "a (2)", "a (3)"]
    with pytest.raises(OutputsOfMany, match="ran 3 times"):
        _ = needed.outputs


def test_one_instance_is_the_job() -> None:
    assert Needed([instance("a", "success", version="1")]).outputs == {"version": "1"}


def test_an_output_that_is_not_there_is_said() -> None:
    assert Output("a", "success", Matrix({}), None).value is None
    lost: Output[str] = Output("a (1)", "failed", Matrix({}))
    with pytest.raises(NoOutput, match=r"a \(1\) ended as failed"):
        _ = lost.value
