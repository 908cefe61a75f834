"""What processing an event gives: how it ends, and everything that is to be written with that."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from kici.engine.lockfile import LockWorkflow
from kici.orchestrator.store.caused import Cause
from kici.orchestrator.store.event_claims import Ended
from kici.orchestrator.store.registrations import Repository
from kici.orchestrator.store.runs import NewJob, NewRun


class Registering(Struct, frozen=True):
    """The workflows of a repository's default branch after a push."""

    repository: Repository
    commit_sha: str
    workflows: Sequence[LockWorkflow]
    pushed_at: datetime


class Planned(Struct, frozen=True):
    run: NewRun
    jobs: Sequence[NewJob] = ()
    may_have_twin: bool = False
    """The forge may tell of the same thing through two sources: one run is enough."""


class Result(Struct, frozen=True):
    ended: Ended
    runs: Sequence[Planned] = ()
    registering: Registering | None = None
    cause: Cause | None = None
    """The workflow whose event it is, if only so many of those may start runs."""


def ends(status: str, message: str = "", *, repo: str = "", ref: str = "") -> Result:
    """Without any run."""
    return Result(Ended(status=status, message=message, repo=repo, ref=ref))


def with_runs(result: Result, runs: Sequence[Planned]) -> Result:
    return replace(result, runs=runs, ended=replace(result.ended, matched=len(runs)))
