"""Hops on the machine: settings, programs, certificates, the work directory."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import stat
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from kici import settings_names
from kici.agent import ca_bundle, disk, facts, own_id, workspace
from kici.agent.check.hop import Finding, Hop, fail, in_thread, ok, warn
from kici.agent.check.known import Known, make_directory
from kici.agent.errors import SettingsInvalid
from kici.agent.sandbox.bubblewrap import system_mounts
from kici.agent.sandbox.launch import interpreter_paths
from kici.agent.settings import load
from kici.dependencies.errors import UvMissing
from kici.dependencies.uv import find_uv
from kici.subprocesses import started

GIT_LEAST = (2, 32)
"""Older ones do not know `GIT_CONFIG_GLOBAL`: they would read what is configured for a user."""
_IN_MEMORY = ("tmpfs", "ramfs")
_NETWORK = re.compile(r"nfs\d?|cifs|smb\d?|9p|fuse\..*|virtiofs|afs|ceph|glusterfs|lustre")
_ESCAPE = re.compile(r"\\([0-7]{3})")


async def settings(known: Known) -> Finding:
    file = known.environ.get("KICI_AGENT_TOKEN_FILE", "").strip()
    misspelt = settings_names.misspelt(known.environ, settings_names.AGENT)
    found = known.settings = load(known.environ)
    slots = "1 slot" if found.agent_slots == 1 else f"{found.agent_slots} slots"
    told = f"{found.orchestrator_url}, {slots}, labels: {', '.join(found.labels) or 'none'}"
    if misspelt:
        names = ", ".join(f"{name} (did you mean {meant}?)" for name, meant in misspelt)
        return warn(f"{told}; nobody reads {names}", "correct the names")
    if file and Path(file).stat().st_mode & 0o077:
        mode = stat.filemode(Path(file).stat().st_mode)
        return warn(f"{told}; KICI_AGENT_TOKEN_FILE can be read by others ({mode})", f"chmod 600 {file}")
    return ok(told)


async def programs(known: Known) -> Finding:
    facts.check_tools()
    tar = (await _said("tar", "--version")).splitlines()[0]
    return ok(tar) if "GNU" in tar else warn(f"{tar}: not GNU tar, which archives need", "install GNU tar")


async def git(known: Known) -> Finding:
    said = await _said("git", "--version")
    version = re.search(r"(\d+)\.(\d+)", said)
    if version is None or (int(version[1]), int(version[2])) < GIT_LEAST:
        least = ".".join(map(str, GIT_LEAST))
        return fail(
            f"{said}: older than {least}, it would heed configuration of users", f"install git {least} or newer"
        )
    lfs = "git-lfs is here" if shutil.which("git-lfs") else "no git-lfs: jobs with lfs=True fail here"
    return ok(f"{said}; {lfs}")


async def uv(known: Known) -> Finding:
    try:
        return ok(await _said(find_uv(), "--version"))
    except UvMissing:
        return warn("no uv: jobs of workflows with packages fail here", "`pip install uv`, or put it on PATH")


async def zstd(known: Known) -> Finding:
    if shutil.which("zstd"):
        return ok((await _said("zstd", "--version")).strip("* "))
    return warn("no zstd: caches and artifacts are packed by kici itself, which is slower", "install zstd")


async def certificates(known: Known) -> Finding:
    bundle = known.settings.ca_bundle
    if bundle is None:
        return ok("the machine's authorities; KICI_CA_BUNDLE is not set")
    ca_bundle.check(bundle)
    ca_bundle.use(bundle, known.environ)
    return ok(f"those of {bundle}, and no others")


async def work_dir(known: Known) -> Finding:
    directory = known.settings.work_dir
    in_use = ""
    if directory.exists():
        try:
            with workspace.locked(directory):
                pass
        except workspace.InUse:
            in_use = "; an agent uses it now"
    else:
        try:
            make_directory(directory, known.at_end)
        except OSError as error:
            return fail(f"{directory} cannot be made ({error.strerror})", "set KICI_WORK_DIR")
    try:
        await in_thread(lambda: _write(directory))
    except OSError as error:
        return fail(f"{directory} cannot be written to ({error.strerror})", "set KICI_WORK_DIR")
    known.agent_id = known.settings.agent_id or own_id.found(directory)
    shown = _shown(directory)
    if shown is not None:
        return fail(f"{directory} is below {shown}, which every job sees", "set KICI_WORK_DIR elsewhere")
    kind, options = file_system(directory)
    told = f"{directory} on {kind}{in_use}"
    if "noexec" in options:
        return fail(f"{told}, mounted noexec: jobs can start no program of theirs", "mount it without noexec")
    if kind in _IN_MEMORY:
        return warn(f"{told}: what jobs write is memory", "set KICI_WORK_DIR to a directory on a disk")
    if _NETWORK.fullmatch(kind):
        return warn(f"{told}: a network's file system is slow, and may lack locks and users", "use a local disk")
    return ok(told)


async def agent_id(known: Known) -> Finding:
    if known.settings.agent_id:
        return ok(f"{known.agent_id}, from KICI_AGENT_ID")
    if known.agent_id:
        return ok(f"{known.agent_id}, kept in {known.settings.work_dir / own_id.NAME}")
    return ok(f"none yet: the first start makes one and keeps it in {known.settings.work_dir / own_id.NAME}")


async def room(known: Known) -> Finding:
    wanted = known.settings
    free_bytes, free_inodes = disk.free(wanted.work_dir)
    if missing := disk.missing(wanted.work_dir, wanted.min_free_bytes, wanted.min_free_inodes):
        return fail(f"no job would be taken: {missing}", "free some, or lower the limit")
    inodes = "inodes are not counted" if free_inodes is None else f"{free_inodes:,} inodes free"
    return ok(f"{free_bytes / 1024**3:.1f} GiB free, {inodes}")


HOPS: Sequence[Hop[Known]] = (
    Hop("settings", settings, 5),
    Hop("programs", programs, 10),
    Hop("git", git, 10, ("programs",), "install git"),
    Hop("uv", uv, 10),
    Hop("zstd", zstd, 10),
    Hop("certificates", certificates, 10, ("settings",)),
    Hop("work directory", work_dir, 20, ("settings",), "set KICI_WORK_DIR to a local disk"),
    Hop("agent id", agent_id, 5, ("settings", "work directory")),
    Hop("room", room, 10, ("settings", "work directory")),
)


async def _said(*argv: str) -> str:
    async with started(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    ) as process:
        out, _ = await process.communicate()
    if process.returncode:
        raise SettingsInvalid(f"{' '.join(argv)} failed ({process.returncode}): {out.decode(errors='replace')[:500]}")
    return out.decode(errors="replace").strip()


def _write(directory: Path) -> None:
    """A file, to the disk."""
    path = directory / f"{workspace.CHECK}{secrets.token_hex(8)}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, b"\0" * 4096)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        path.unlink()


def _shown(directory: Path) -> Path | None:
    """The place above it, or itself, that the sandbox shows to every job."""
    real = directory.resolve()
    system = [Path(source) for option, source in pairwise(system_mounts()) if option == "--ro-bind"]
    return next((one for one in (*system, *interpreter_paths()) if real.is_relative_to(one)), None)


def file_system(directory: Path) -> tuple[str, Sequence[str]]:
    """Its type and mount options."""
    real = os.path.realpath(directory)
    best, found = "", ("unknown", [""])
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
        if len(point) >= len(best) and Path(real).is_relative_to(point):
            best, found = point, (after.split(" ")[0], fields[5].split(","))
    return found
