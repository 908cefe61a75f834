"""Every trigger from the author's module to the lock file, and what is refused at its line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kici.engine import lock_triggers as lock
from kici.engine import lockfile
from kici.engine.lock_triggers import LockInput, Regex
from tests.integration.compiler.conftest import Repository

NAMES = """
from kici import comment, create, delete, dispatch, fork, generic_webhook, job_complete, kici_event, lifecycle, release
from kici import review, review_comment, schedule, star, status, watch, webhook, workflow_complete, workflow_run
"""
EVERY = (
    NAMES
    + """
import dataclasses, enum, re
from typing import Annotated, Literal
import msgspec

class Size(enum.Enum):
    small = "s"
    large = "l"

@dataclasses.dataclass
class Inputs:
    '''What it takes.'''
    target: Literal["staging", "prod"] = "staging"
    size: Size = Size.small
    count: Annotated[int, msgspec.Meta(ge=1, le=10)] = 1
    share: Annotated[float, msgspec.Meta(gt=0)] = 0.5
    note: Annotated[str, msgspec.Meta(pattern="^[a-z]+$", max_length=9, description="Why")] | None = None
    dry: bool = False

class Required(msgspec.Struct):
    version: str

every = workflow("every", on=[
    comment(actions="created", source="pr", body_match=["/deploy *", re.compile("go", re.I)]),
    review(states="approved"), review_comment(), release(actions="published"),
    create(ref_types="tag", patterns="v*"), delete(), status(contexts="ci/*", states="failure"),
    workflow_run(workflows="CI"), fork(), star(), watch(), webhook("deployment"),
    kici_event("built", match={"$.n": [1, re.compile("x")], "$.ok": True}, not_={'$["a b"][0]': None}, source="o/r"),
    workflow_complete("ci", status="success"), job_complete(job="unit"),
    generic_webhook("jira", match={"$.a.b": "c"}),
    schedule("0  6 * * MON-FRI", tz="Europe/Berlin", inputs=Inputs),
    lifecycle(["job_failed"], sources="o/r"), manual(inputs=Inputs), dispatch(types="go", inputs=Required),
], jobs=[job("a", runs_on="linux", steps=["true"])])
"""
)


def test_every_trigger_reaches_the_lock_file_and_comes_back(repository: Repository) -> None:
    repository.module("ci.py", EVERY)
    compiled = repository.compile()
    assert compiled.problems == ()
    assert compiled.lock
    inputs = {
        "target": LockInput("string", default="staging", choices=("prod", "staging")),
        "size": LockInput("string", default="s", choices=("s", "l")),
        "count": LockInput("integer", default=1, ge=1, le=10),
        "share": LockInput("number", default=0.5, gt=0),
        "note": LockInput("string", nullable=True, pattern="^[a-z]+$", max_length=9, description="Why"),
        "dry": LockInput("boolean", default=False),
    }
    (read,) = lockfile.decode(compiled.data).workflows
    assert list(read.triggers) == [
        lock.CommentTrigger(("created",), ("pr",), ("/deploy *", Regex("(?i)go"))),
        lock.ReviewTrigger(states=("approved",)),
        lock.ReviewCommentTrigger(),
        lock.ReleaseTrigger(("published",)),
        lock.CreateTrigger(("tag",), ("v*",)),
        lock.DeleteTrigger(),
        lock.StatusTrigger(("ci/*",), ("failure",)),
        lock.WorkflowRunTrigger(workflows=("CI",)),
        lock.ForkTrigger(),
        lock.StarTrigger(),
        lock.WatchTrigger(),
        lock.WebhookTrigger(("deployment",)),
        lock.KiciEventTrigger("built", {"$.n": (1, Regex("x")), "$.ok": True}, {'$["a b"][0]': None}, ("o/r",)),
        lock.WorkflowCompleteTrigger(("ci",), ("success",)),
        lock.JobCompleteTrigger(job=("unit",)),
        lock.GenericWebhookTrigger("jira", match={"$.a.b": "c"}),
        lock.ScheduleTrigger("0 6 * * MON-FRI", "Europe/Berlin", inputs),
        lock.LifecycleTrigger(("job_failed",), ("o/r",)),
        lock.ManualTrigger(inputs),
        lock.DispatchTrigger(("go",), {"version": LockInput("string", required=True)}),
    ]


BAD = {
    'schedule("0 0 30 2 *")': "schedule(…): cron '0 0 30 2 *' never fires: no month of it has a day 30",
    'schedule("0 25 * * *")': "hour '25' is not 0 to 23",
    'schedule("0 6 * * *", tz="Europe/Berln")': "there is no time zone 'Europe/Berln' (did you mean 'Europe/Berlin'?)",
    "schedule('0 6 * * *', inputs=Required)": "schedule(…): input 'version' has no default",
    "manual(inputs=Unfit)": "manual(…): inputs: Unfit.tags is of the type list: take text, int",
    "dispatch(inputs=BadDefault)": "inputs: BadDefault.count cannot be an input: its default is 0; it is at least 1",
    "dispatch(inputs=BadPattern)": "inputs: BadPattern.name cannot be an input: '(?=x)' cannot be read",
    "manual(inputs=Two)": "inputs: Two.either may be of several types",
    "manual(inputs=int)": "inputs",
    'kici_event("a", match={"$.a[*]": 1})': "path '$.a[*]' cannot be read at '[*]'",
    'kici_event("a", match={"$.a": re.compile("(?=x)")})': "look-around",
    'comment(body_match=re.compile("(?<!x)"))': "look-around",
    'lifecycle("registration_updated")': "nothing tells of 'registration_updated' in this version",
    'release(actions="publish")': "there is no 'publish' (did you mean 'published'?)",
}
CLASSES = (
    NAMES
    + """
import re
from typing import Annotated
import msgspec

class Required(msgspec.Struct):
    version: str
class Unfit(msgspec.Struct):
    tags: list[str]
class BadDefault(msgspec.Struct):
    count: Annotated[int, msgspec.Meta(ge=1)] = 0
class BadPattern(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(pattern="(?=x)")]
class Two(msgspec.Struct):
    either: int | str = 1
"""
)


@pytest.mark.parametrize(("written", "says"), BAD.items())
def test_what_cannot_work_is_refused_once_and_at_its_line(repository: Repository, written: str, says: str) -> None:
    one = 'job("a", runs_on="linux", steps=["true"])'
    module = f'{CLASSES}\nci = workflow("ci", jobs=[{one}], on=[\n    push(),\n    {written},\n])\n'
    repository.module("ci.py", module)
    (problem,) = repository.problems()
    lines = (repository.root / ".kici/workflows/ci.py").read_text().splitlines()
    # A pattern is looked at by the engine, which knows the workflow's line alone.
    wanted = "ci = workflow" if written.startswith("comment") else written
    assert problem.startswith(f"ci.py:{next(n for n, line in enumerate(lines, 1) if wanted in line)}: ")
    assert says in problem


def test_two_equal_schedules_are_refused(repository: Repository) -> None:
    one = 'job("a", runs_on="linux", steps=["true"])'
    repository.module(
        "ci.py", f'{NAMES}\nci = workflow("ci", jobs=[{one}], on=[schedule("@daily"), schedule("@daily")])\n'
    )
    (problem,) = repository.problems()
    assert "two schedules are '@daily' in UTC: leave one out" in problem


def test_the_sdk_does_not_load_what_checks_crons() -> None:
    code = "import kici, sys; kici.schedule('x'); print([m for m in sys.modules if m in ('zoneinfo', 'kici.engine')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
