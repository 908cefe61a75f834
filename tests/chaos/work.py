"""The work that the chaos is about: how many jobs, how they hang together, and what each must have written."""

from __future__ import annotations

import json
import random
from typing import Any

from msgspec import Struct

from kici.engine import plan
from kici.engine.events import Event, EventType
from kici.engine.lockfile import LockJob, LockNeed, LockWorkflow, PushTrigger, Retry
from tests.support.locks import job, workflow

ATTEMPTS = 1_000
"""As many as it takes: an attempt that is lost is never the reason that a job fails here."""
AGAIN = Retry(ATTEMPTS, delay_ms=50, backoff="fixed")
REPO = "team/chaos"


def _job(name: str, *needs: str | LockNeed, **options: Any) -> LockJob:
    return job(name, needs=needs, retry_on_infra=AGAIN, **options)


WORKFLOWS: tuple[LockWorkflow, ...] = (
    workflow(
        "ci",
        on=(PushTrigger(),),
        jobs=(
            _job("build", matrix={"os": ("a", "b", "c"), "version": ("1", "2")}),
            _job("test", "build", matrix={"shard": ("1", "2", "3", "4", "5", "6")}),
            _job("report", LockNeed("test", ("success", "failed", "skipped", "cancelled"))),
        ),
    ),
    workflow(
        "checks",
        on=(PushTrigger(),),
        jobs=(
            _job("fetch"),
            _job("lint", "fetch"),
            _job("types", "fetch"),
            _job("docs", "fetch", matrix={"language": ("en", "de")}),
            _job("pack", "lint", "types"),
            _job("publish", "pack", "docs"),
        ),
    ),
)


def jobs_per_push() -> int:
    event = Event(EventType.PUSH, branch="main", sha="0" * 40, repo=REPO)
    return sum(len(plan.plan(one, event).jobs) for one in WORKFLOWS)


class Log(Struct, frozen=True):
    """One chunk of an attempt's log."""

    first_line: int
    lines: list[str]


def log_of(job_id: str, attempt: int) -> list[Log]:
    """What an attempt writes: told by its name alone, so that every byte can be checked afterwards."""
    dice = random.Random(f"{job_id} {attempt}")
    chunks = []
    first = 0
    for number in range(dice.randrange(1, 5)):
        lines = [
            f"2026-01-02T03:04:05.{(first + at) % 1000:03d}Z {job_id} attempt {attempt} chunk {number}"
            f" {dice.randbytes(dice.randrange(4, 60)).hex()}"
            for at in range(dice.randrange(1, 12))
        ]
        chunks.append(Log(first, lines))
        first += len(lines)
    return chunks


def push(number: int, sha: str, clone_url: str) -> bytes:
    """A delivery of GitHub's."""
    return json.dumps(
        {
            "ref": "refs/heads/main",
            "before": "0" * 40,
            "after": sha,
            "created": True,
            "repository": {"full_name": REPO, "clone_url": clone_url, "default_branch": "main"},
            "head_commit": {"id": sha, "message": f"push {number}"},
            "pusher": {"name": "chaos"},
        }
    ).encode()
