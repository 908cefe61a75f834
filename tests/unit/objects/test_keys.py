from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kici.orchestrator.objects import keys
from kici.orchestrator.objects.contract import check_key

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)


def test_a_plain_name_stays_readable() -> None:
    assert keys.step_log("r", "build", 1, 2, 1) == "executions/r/job-build/step-2.log.zst"
    assert keys.step_log("r", "test (3.11, a/b)", 2, -1, 3) == (
        "executions/r/job-test=20=283.11=2C=20a=2Fb=29/attempt-2/step--1.upload-3.log.zst"
    )


@given(names)
def test_every_name_gives_an_allowed_key(name: str) -> None:
    check_key(keys.step_log("r", name, 1, 0, 1))
    check_key(keys.part(keys.artifact("r" * 36, name, "0" * 36), 10_000))


@given(names, names)
def test_two_names_never_meet(one: str, other: str) -> None:
    assert (one == other) == (keys.escape(one) == keys.escape(other))


def test_two_long_names_that_begin_alike_never_meet() -> None:
    assert keys.escape("x" * 400 + "1") != keys.escape("x" * 400 + "2")
