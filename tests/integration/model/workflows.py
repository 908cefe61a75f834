"""Workflows with everything that decides about a run's course."""

from __future__ import annotations

from hypothesis import strategies as st

from kici.engine.lifecycle import FAILED_JOB, TERMINAL_JOB
from kici.engine.lockfile import LockConcurrency, LockJob, LockNeed, LockWorkflow, Retry
from tests.support.locks import job, workflow

LINUX = ("kici:os:linux",)
GPU = (*LINUX, "gpu")
GROUPS = {"solo": 1, "pair": 2}
"""Concurrency group → how many may be in it."""

_whens = st.sampled_from(
    [
        ("success",),
        ("success",),
        ("success",),
        tuple(sorted(TERMINAL_JOB)),
        tuple(sorted(FAILED_JOB)),
        ("cancelled", "success"),
        ("skipped", "success"),
    ]
)
_labels = st.sampled_from([("linux",)] * 9 + [("gpu",)] * 2 + [("nobody-has-this",)])
_retries = st.one_of(
    st.none(), st.builds(Retry, st.integers(1, 4), st.just(500), st.sampled_from(["fixed", "exponential"]))
)
_groups = st.sampled_from(sorted(GROUPS)).flatmap(
    lambda group: st.builds(
        LockConcurrency,
        group=st.just(group),
        cancel_in_progress=st.sampled_from([False, False, True]),
        max=st.just(GROUPS[group]),
        pending=st.sampled_from(["keep-latest", "queue", "queue"]),
    )
)
_matrices = st.sampled_from([None, None, None, {"os": ("a", "b")}, {"os": ("a", "b", "c")}])


@st.composite
def _jobs(draw: st.DrawFn) -> tuple[LockJob, ...]:
    names = ["build", "test", "lint", "ship"][: draw(st.integers(1, 4))]
    made: list[LockJob] = []
    for number, name in enumerate(names):
        needed = draw(st.lists(st.sampled_from(names[:number]), unique=True, max_size=2)) if number else []
        matrix = draw(_matrices)
        fans = matrix is not None and draw(st.booleans())
        made.append(
            job(
                name,
                needs=[LockNeed(upstream, draw(_whens)) for upstream in needed],
                steps=("first", "second")[: draw(st.integers(1, 2))],
                runs_on=draw(_labels),
                matrix=matrix,
                max_parallel=draw(st.integers(1, 2)) if fans else None,
                fail_fast=fans and draw(st.booleans()),
                retry_on_infra=draw(_retries),
                environment="prod" if draw(st.integers(0, 19)) == 19 else None,
                concurrency=draw(_groups) if draw(st.integers(0, 7)) == 7 else None,
                timeout_ms=60_000 if draw(st.booleans()) else None,
            )
        )
    return tuple(made)


@st.composite
def workflows(draw: st.DrawFn) -> LockWorkflow:
    concurrency = draw(_groups) if draw(st.integers(0, 5)) == 5 else None
    timeout_ms = 3_600_000 if draw(st.booleans()) else None
    return workflow("ci", jobs=draw(_jobs()), concurrency=concurrency, timeout_ms=timeout_ms)
