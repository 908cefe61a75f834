"""`resources` of a job: the forms that an author may write, and what each of them says in the lock file."""

from __future__ import annotations

from typing import Any

import pytest

import kici
from kici import DefinitionError, Resources, manual, workflow
from kici.engine.lockfile import LockAmount, LockResources
from kici.lowering.jobs import lowered_job
from kici.sdk.sizes import size_bytes

anything: Any = kici
GIB = 1024**3


def locked(resources: Any) -> LockResources | None:
    made = anything.job("a", runs_on="linux", steps=["true"], resources=resources)
    return lowered_job(made, workflow("ci", on=manual(), jobs=[made]), lambda location: None).resources


BOTH = LockAmount(2000, 4 * GIB)


@pytest.mark.parametrize(
    ("written", "requests", "limits"),
    [
        ({"cpus": 2, "memory": "4g"}, BOTH, BOTH),
        (Resources(cpus=2, memory="4G"), BOTH, BOTH),
        ({"limits": {"cpus": 2, "memory": "4096m"}}, BOTH, BOTH),
        ({"requests": {"cpus": 2, "memory": 4 * GIB}}, BOTH, BOTH),
        (Resources(requests={"cpus": 0.5}, limits={"cpus": 2, "memory": "4g"}), LockAmount(500), BOTH),
        ({"memory": "1.5g"}, LockAmount(None, 3 * GIB // 2), LockAmount(None, 3 * GIB // 2)),
        ({"cpus": 0.25}, LockAmount(250), LockAmount(250)),
    ],
)
def test_a_side_that_is_left_out_is_as_the_other(written: Any, requests: LockAmount, limits: LockAmount) -> None:
    assert locked(written) == LockResources(requests, limits)


def test_without_a_word_nothing_is_said() -> None:
    assert locked(None) is None


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ({"cpus": 2, "limits": {"memory": "4g"}}, "cpus stand beside limits"),
        ({"cpu": 2}, "there is no 'cpu' (did you mean 'cpus'?)"),
        ({"limits": {"mem": "4g"}}, "limits: there is no 'mem'"),
        ({"requests": {"memory": "4g"}, "limits": {"memory": "2g"}}, "memory: the request is above the limit"),
        ({"requests": {"cpus": 2}, "limits": {"cpus": 1}}, "cpus: the request is above the limit"),
        ({"cpus": 0}, "cpus is 0: write a number of cores from 0.01 to 256"),
        ({"cpus": 257}, "cpus is 257"),
        ({"cpus": True}, "cpus is True"),
        ({"cpus": float("nan")}, "cpus is nan"),
        ({"cpus": "2"}, "cpus is '2'"),
        ({"memory": "4GiB"}, 'memory: \'4GiB\' is not a size: write "512m" or "4g"'),
        ({"memory": "10m"}, "memory is '10m'"),
        ({"memory": "4"}, "'4' is not a size"),
        ({}, "they say nothing"),
        ({"limits": {}}, "it says neither cpus nor memory"),
        ({"limits": 4}, "limits: 4 is no amount"),
        ("4g", "'4g' are none"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_write(written: Any, complaint: str) -> None:
    with pytest.raises(DefinitionError) as error:
        locked(written)
    assert complaint in str(error.value)
    assert str(error.value).startswith("job 'a': resources")


def test_sizes_are_rounded_down_to_whole_bytes() -> None:
    assert size_bytes("1.0000001k") == 1024
    assert size_bytes(" 2M ") == 2 * 1024**2
    with pytest.raises(ValueError, match="is not a size"):
        size_bytes(True)
