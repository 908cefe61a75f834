"""Hops about the boxes that jobs run in: the sandbox, its users and limits, the operator's hooks, and a whole job."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence

from msgspec.structs import replace

from kici.agent import job_disk, job_limits, workspace
from kici.agent.check import trial
from kici.agent.check.hop import Finding, Hop, fail, in_thread, ok, warn
from kici.agent.check.known import Known
from kici.agent.hooks import NAMES, Hooks
from kici.agent.sandbox import cgroups
from kici.agent.sandbox.choose import choose
from kici.agent.sandbox.slot_users import PROBE_SLOT
from kici.agent.workspace import Owner

_PAGE = "see docs/operator/sandboxes.md"


async def sandbox(known: Known) -> Finding:
    wanted = known.settings
    # Under another name: an agent that runs here keeps its containers. And nothing is downloaded for a check.
    container = replace(wanted.container, agent=secrets.token_hex(8), pull="never")
    choice = known.choice = await in_thread(
        lambda: choose(wanted.sandbox, wanted.sandbox_profile, container, wanted.sandbox_allow)
    )
    if choice.fallback:
        return warn(f"{choice.sandbox.name}; {choice.fallback}", f"KICI_SANDBOX=true insists; {_PAGE}")
    if choice.sandbox.name == "none":
        return warn(f"none, {choice.why}: they can read the agent's token", "run trusted code only, or set auto")
    profile = f", profile {choice.profile}" if choice.profile != "steps" else ""
    return ok(f"{choice.sandbox.name}{profile}: started once, with its seccomp filter")


async def slots(known: Known) -> Finding:
    owners = [known.choice.sandbox.owner(slot) for slot in (0, known.settings.agent_slots - 1)]
    if owners[0] is None:
        return ok(f"jobs run as uid {os.geteuid()}, like the agent, in {known.settings.agent_slots} slots")
    return ok(f"jobs run as uid {owners[0]} to {owners[1]}, one for each slot")


async def limits(known: Known) -> Finding:
    wanted = known.limits = job_limits.limited(known.settings).limits
    disk_bytes = known.settings.job_disk
    if disk_bytes is not None:
        job_disk.check()
    told = ", ".join(
        f"{name} {'no limit' if value is None else f'{value:,}'}"
        for name, value in (
            ("memory", wanted.memory_bytes),
            ("cpus", wanted.cpus),
            ("processes", wanted.pids),
            ("disk", disk_bytes),
        )
    )
    if known.choice.sandbox.name == "container":
        return ok(f"{told}; podman sets them")
    there = frozenset[str]().union(*(one.controllers for one in cgroups.hierarchies()))
    missing = [name for name in ("memory", "cpu", "pids") if name not in there]
    way_out = "see docs/operator/job-limits.md"
    if wanted.pids is None:
        return warn(f"{told}: no control group can be made here, a fork bomb takes the machine", way_out)
    if missing:
        return warn(f"{told}; control groups here cannot limit {', '.join(missing)}", way_out)
    return ok(f"{told}; control groups with memory, cpu, pids")


async def hooks(known: Known) -> Finding:
    wanted = known.settings
    found = Hooks(
        wanted.hooks_dir,
        work_dir=wanted.work_dir,
        timeout_s=wanted.hook_timeout_s,
        sandboxed=known.choice.sandbox.name != "none",
    )
    if wanted.hooks_dir is None:
        return ok("none, KICI_HOOKS_DIR is not set")
    return ok(f"{wanted.hooks_dir}: {', '.join(name for name in NAMES if found.has(name)) or 'empty'}")


async def job_directory(known: Known) -> Finding:
    uid = known.choice.sandbox.owner(PROBE_SLOT)
    place = known.at_end.enter_context(workspace.apart(known.settings.work_dir))
    owner = None if uid is None else Owner(uid, uid)
    known.space = known.at_end.enter_context(workspace.opened(place, PROBE_SLOT, owner))
    return ok(f"made, for uid {os.geteuid() if uid is None else uid}")


async def job(known: Known) -> Finding:
    network = known.settings.sandbox_network == "host"
    ready_s, ran_s, ended = await trial.run(known.choice.sandbox, known.space, known.limits, network=network)
    if ended.status != "success":
        return fail(f"it ended as {ended.status}: {ended.error}", _PAGE)
    return ok(f"the runner stood ready after {ready_s * 1000:.0f} ms, and ran `true` in {ran_s * 1000:.0f} ms more")


HOPS: Sequence[Hop[Known]] = (
    Hop("sandbox", sandbox, 90, ("settings",), _PAGE),
    Hop("slots", slots, 5, ("settings", "sandbox"), "set a lower KICI_AGENT_SLOTS"),
    Hop("limits", limits, 15, ("settings", "sandbox"), "see docs/operator/job-limits.md"),
    Hop("hooks", hooks, 5, ("settings", "sandbox")),
    Hop("job directory", job_directory, 15, ("work directory", "sandbox"), "set KICI_WORK_DIR to a local disk"),
)
LAST: Sequence[Hop[Known]] = (Hop("job", job, 75, ("sandbox", "limits", "job directory"), _PAGE),)
