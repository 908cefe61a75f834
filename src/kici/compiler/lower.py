"""Workflows → structs of the lock file. What cannot be lowered is refused and the rest goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from kici.compiler.lower_triggers import lowered_triggers
from kici.engine.lockfile import Level, LockRegistry, LockWorkflow, SourceLocation
from kici.lowering.jobs import lowered_concurrency, lowered_generator, lowered_job, lowered_rules
from kici.nearest import nearest
from kici.sdk.generators import Generator
from kici.sdk.jobs import Job
from kici.sdk.problems import Location, refuse
from kici.sdk.workflows import Workflow


class Lowering:
    """For one repository. Locations outside `.kici/` (an installed package) are left out: they differ by machine."""

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)
        self._files: dict[str, str] = {}
        self._kici = os.path.join(self._root, ".kici") + os.sep

    def workflow(self, workflow: Workflow, path: str, export: str) -> LockWorkflow:
        """`path` is the module's, below `.kici/`."""
        own = self.locate(workflow.location)
        file = f".kici/{path}"
        _check_needs(workflow)
        subject = f"workflow {workflow.name!r}"
        return LockWorkflow(
            name=workflow.name,
            source=own if own and own.file == file else SourceLocation(file),
            export=export,
            content_hash="",
            triggers=tuple(one for trigger in workflow.on for one in lowered_triggers(trigger, subject)),
            jobs=tuple(lowered_job(job, workflow, self.locate) for job in workflow.jobs),
            generators=tuple(lowered_generator(one, self.locate) for one in workflow.generators),
            rules=lowered_rules(workflow.rules, subject, workflow.location),
            description=workflow.description,
            env=workflow.env,
            concurrency=lowered_concurrency(workflow.concurrency),
            timeout_ms=workflow.timeout_ms,
            permissions=_permissions(workflow.permissions),
            registries=tuple(LockRegistry(one.url, one.token_secret, one.name) for one in workflow.registries),
            hash_files=workflow.hash_files,
        )

    def locate(self, location: Location) -> SourceLocation | None:
        if location.file not in self._files:
            file = os.path.realpath(location.file)
            below = file.startswith(self._kici)
            self._files[location.file] = os.path.relpath(file, self._root).replace(os.sep, "/") if below else ""
        return SourceLocation(self._files[location.file], location.line) if self._files[location.file] else None


def _permissions(given: Mapping[str, str] | None) -> dict[str, Level] | None:
    return None if given is None else {kind: Level(level) for kind, level in given.items()}


def _check_needs(workflow: Workflow) -> None:
    """Every job and generator that is reached by its object must be listed, and be the listed one of its name."""
    reached: list[Job[Any] | Generator] = [*workflow.jobs, *workflow.generators]
    listed = {one.name: one for one in reached}
    seen = {id(one) for one in reached}
    for one in reached:
        kind = "job" if isinstance(one, Job) else "jobs"
        subject = f"workflow {workflow.name!r}: {kind} {one.name!r}"
        for need in one.needs:
            wanted = need.job
            if need.name not in listed:
                how = f"write the job itself{nearest(need.name, listed)} in" if isinstance(wanted, str) else "add it to"
                refuse(subject, f"it needs {need.name!r}, which is not listed: {how} jobs=[…]", one.location)
            elif not isinstance(wanted, str) and wanted is not listed[need.name] and id(wanted) not in seen:
                refuse(subject, f"it needs another job called {need.name!r} than the listed one", one.location)
            if not isinstance(wanted, str) and id(wanted) not in seen:
                seen.add(id(wanted))
                reached.append(wanted)
