"""The event that a local run stands for, from the repository as it is and what was asked for."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from kici.cli.local import event_words
from kici.engine import event_files
from kici.engine.errors import EventFileError
from kici.engine.events import Event
from kici.engine.lock_triggers import TagTrigger, Trigger
from kici.engine.lockfile import LockWorkflow
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

    With a workflow the event is one that its trigger takes. A workflow that nothing starts gets a manual start. Raises
    `UnknownEvent` for a word that means no event, or a file that holds none.
    """
    if asked.kind.endswith(".json"):
        return _from_file(asked, found)
    kind, detail = event_words.split(asked.kind or (_kind_for(workflow) if workflow else "push"))
    trigger = trigger_for(workflow, kind)
    ref = asked.ref or found.branch or "main"
    said = event_words.fields(kind, detail, trigger, ref)
    if kind == "tag":
        wanted = trigger.patterns if isinstance(trigger, TagTrigger) else ()
        said["tag"] = asked.ref or event_words.sample(wanted, "v0.0.0-local")
    if asked.target and "base_branch" in said:
        said["base_branch"] = asked.target
    if workflow and kind in ("manual", "schedule"):
        said["workflow"] = workflow.name
    said.setdefault("payload", {"repository": {"full_name": found.name, "default_branch": "main"}})
    return Event(
        branch="" if said.get("tag") else ref,
        sha=found.sha,
        before=found.before,
        repo=found.name,
        actor=found.actor,
        message=found.message,
        changed_files=asked.changed or None,
        inputs=dict(asked.inputs),
        **said,
    )


def trigger_for(workflow: LockWorkflow | None, kind: str) -> Trigger | None:
    """The workflow's first trigger of this kind; without a kind, the one that the event is made of."""
    triggers = workflow.triggers if workflow else ()
    kind = kind or (_kind_for(workflow) if workflow else "")
    return next((trigger for trigger in triggers if event_words.kind_of(trigger) == kind), None)


def _kind_for(workflow: LockWorkflow) -> str:
    kinds = [event_words.kind_of(trigger) for trigger in workflow.triggers]
    return "push" if "push" in kinds else kinds[0] if kinds else "manual"


def _from_file(asked: Asked, found: Repository) -> Event:
    """What `kici fixture` wrote, by its path or its name below `.kici/events/`. Git tells what the file leaves open."""
    from msgspec.structs import replace

    places = [Path(asked.kind), Path(event_files.DIRECTORY) / asked.kind]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise event_words.UnknownEvent(
            f"there is no file {asked.kind}, here or below {event_files.DIRECTORY}/: `kici fixture EVENT` makes one"
        )
    try:
        read = event_files.decode(file.read_bytes(), str(file))
    except EventFileError as error:
        raise event_words.UnknownEvent(str(error)) from error
    return replace(
        read,
        sha=read.sha or found.sha,
        repo=read.repo or found.name,
        branch=read.branch or ("" if read.tag else asked.ref or found.branch or "main"),
        inputs={**read.inputs, **asked.inputs},
    )


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=False, timeout=60)
    except FileNotFoundError:
        raise KiciError("git is not installed: kici needs it to know which files belong to the repository") from None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
