"""The event that a local run stands for, from the repository as it is and what was asked for."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from kici.engine.events import Event, EventType
from kici.engine.lockfile import (
    DispatchTrigger,
    GenericWebhookTrigger,
    LockWorkflow,
    ManualTrigger,
    PrTrigger,
    TagTrigger,
)
from kici.errors import KiciError

NO_COMMIT = "0" * 40


class Asked(Struct, frozen=True):
    """What the command line says; empty = not said."""

    kind: str = ""
    ref: str = ""
    target: str = ""
    changed: tuple[str, ...] = ()
    inputs: Mapping[str, str] = {}
    base: str = ""
    """Commit to compare with."""

    @property
    def names_event(self) -> bool:
        """An event was described: it decides what runs, also of a workflow that is named."""
        return bool(self.kind or self.ref or self.changed or self.base)


class Repository(Struct, frozen=True):
    """Facts from git; empty where there is none."""

    branch: str = ""
    sha: str = NO_COMMIT
    before: str = ""
    name: str = ""
    actor: str = ""
    message: str = ""


def repository(root: Path) -> Repository:
    """One call of git for all: a local run must start quickly."""
    form = "%H%x00%P%x00%an%x00%B%x00%D"
    log = _git(root, "log", "-1", "--decorate=full", f"--format={form}")
    if not log:
        return Repository(branch=_git(root, "symbolic-ref", "--short", "-q", "HEAD").strip(), name=f"local/{root.name}")
    sha, parents, actor, message, decorations = log.split("\0", 4)
    current = next((one for one in decorations.split(", ") if one.startswith("HEAD -> ")), "").strip()
    return Repository(
        branch=current.removeprefix("HEAD -> ").removeprefix("refs/heads/"),
        sha=sha,
        before=parents.split(" ")[0],
        name=f"local/{root.name}",
        actor=actor,
        message=message.strip(),
    )


def event(asked: Asked, found: Repository, workflow: LockWorkflow | None) -> Event:
    """Of the kind that was asked for; else of one that the named workflow has a trigger for; else a push.

    A workflow that nothing starts gets a manual start.
    """
    kind = asked.kind or (_kind_for(workflow) if workflow else "push")
    trigger = _trigger(workflow, kind)
    ref = asked.ref or found.branch or "main"
    is_pr = kind == "pr"
    return Event(
        type=EventType.PULL_REQUEST if is_pr else EventType(kind),
        action="synchronize" if is_pr else "",
        branch="" if kind == "tag" else ref,
        tag=(asked.ref or "v0.0.0-local") if kind == "tag" else "",
        base_branch=(asked.target or "main") if is_pr else "",
        pr_number=1 if is_pr else 0,
        sha=found.sha,
        before=found.before,
        repo=found.name,
        actor=found.actor,
        message=found.message,
        changed_files=asked.changed or None,
        source=trigger.source if isinstance(trigger, GenericWebhookTrigger) else "",
        event_name=_event_name(trigger),
        workflow=workflow.name if workflow and kind == "manual" else "",
        inputs=dict(asked.inputs),
    )


_KINDS_OF: dict[type, str] = {
    PrTrigger: "pr",
    TagTrigger: "tag",
    DispatchTrigger: "dispatch",
    GenericWebhookTrigger: "generic_webhook",
    ManualTrigger: "manual",
}


def _kind_for(workflow: LockWorkflow) -> str:
    kinds = [_kind_of(trigger) for trigger in workflow.triggers]
    return "push" if "push" in kinds else kinds[0] if kinds else "manual"


def _kind_of(trigger: object) -> str:
    return next((kind for of, kind in _KINDS_OF.items() if isinstance(trigger, of)), "push")


def _trigger(workflow: LockWorkflow | None, kind: str) -> object:
    triggers = workflow.triggers if workflow else ()
    return next((trigger for trigger in triggers if _kind_of(trigger) == kind), None)


def _event_name(trigger: object) -> str:
    if isinstance(trigger, DispatchTrigger):
        return trigger.types[0] if trigger.types else ""
    if isinstance(trigger, GenericWebhookTrigger):
        return trigger.events[0] if trigger.events else "default"
    return ""


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=False, timeout=60)
    except FileNotFoundError:
        raise KiciError("git is not installed: kici needs it to know which files belong to the repository") from None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
