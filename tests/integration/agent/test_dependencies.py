"""Packages of workflows: real uv, a real index on loopback, and hostile packages."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kici.agent import trash, workspace
from kici.agent.dependencies import NAME, Dependencies, clear_unfinished
from kici.agent.errors import PreparationFailed
from kici.agent.sandbox.slot_users import FIRST_UID, PACKAGES_UIDS
from kici.agent.settings import load
from kici.agent.workspace import Owner, Workspace
from kici.engine.events import Event, EventType
from kici.engine.lockfile import LockRegistry
from kici.wire.context import JobContext
from tests.support.package_index import PASSWORD, USER, PackageIndex

IS_ROOT = os.geteuid() == 0
SECRETS = {"UV_INDEX_INNER_USERNAME": USER, "UV_INDEX_INNER_PASSWORD": PASSWORD}
each_way = pytest.mark.parametrize("sandboxed", [False, True], ids=["none", "sandbox"])


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    with PackageIndex().running() as served:
        served.add("greet", "1.0", {"greet/__init__.py": "WORD = 'welcome'\n"})
        yield served


def dependencies(base: Path, *, sandboxed: bool = False, **variables: str) -> Dependencies:
    given = {"KICI_ORCHESTRATOR_URL": "ws://host:1", "KICI_WORK_DIR": str(base)} | variables
    return Dependencies(load(given), sandboxed=sandboxed)


def known(*, repo: str = "me/repo", secrets: Mapping[str, str] | None = None, pull_request: bool = False) -> JobContext:
    event = Event(EventType.PULL_REQUEST if pull_request else EventType.PUSH, branch="main", repo=repo)
    return JobContext("run", "job", 1, "ci", "build", "build", event, secrets=dict(secrets or {}))


@asynccontextmanager
async def space(base: Path, slot: int = 0, *, sandboxed: bool = False) -> AsyncIterator[Workspace]:
    owner = Owner(FIRST_UID + slot, FIRST_UID + slot) if sandboxed and IS_ROOT else None
    async with asyncio.timeout(100):
        with workspace.opened(base, slot, owner) as opened:
            yield opened


def files(project: Mapping[str, str]) -> dict[str, bytes]:
    return {path.removeprefix(".kici/"): text.encode() for path, text in project.items()}


class Said(list[str]):
    def __call__(self, line: str) -> None:
        self.append(line)


def wheels(index: PackageIndex) -> list[str]:
    return [path for path in index.paths() if path.endswith(".whl")]


# ── kept, checked, shared ────────────────────────────────────────────────────────────────────────────────────────────


@each_way
async def test_an_environment_is_made_once_and_its_files_are_the_agents(
    base: Path, index: PackageIndex, sandboxed: bool
) -> None:
    wanted, kept = files(index.project("greet")), dependencies(base, sandboxed=sandboxed)
    for _ in range(2):
        async with space(base, sandboxed=sandboxed) as here:
            assert await kept.prepare(here, wanted, known(), Said())
            module = here.packages / "greet" / "__init__.py"
            assert module.read_text() == "WORD = 'welcome'\n"
            for path in (here.packages, module.parent, module):
                assert path.stat().st_uid == os.geteuid()
                assert path.stat().st_mode & 0o022 == 0
    assert len(wheels(index)) == 1
    assert [path.name for path in base.glob(f"{NAME}/*/building-*")] == []


async def test_what_is_written_into_a_jobs_copy_without_a_sandbox_is_not_what_the_next_job_gets(
    base: Path, index: PackageIndex
) -> None:
    wanted, kept = files(index.project("greet")), dependencies(base)
    async with space(base) as here:
        await kept.prepare(here, wanted, known(), Said())
        (here.packages / "greet" / "__init__.py").write_text("WORD = 'owned!!'\n")
    async with space(base) as here:
        await kept.prepare(here, wanted, known(), Said())
        assert (here.packages / "greet" / "__init__.py").read_text() == "WORD = 'welcome'\n"


async def test_workflows_without_a_project_get_no_packages_and_nobody_is_asked(base: Path) -> None:
    async with space(base) as here:
        assert not await dependencies(base).prepare(here, {"workflows/ci.py": b""}, known(), Said())
        assert list(here.packages.iterdir()) == []
    assert not (base / NAME).exists()


async def test_several_jobs_that_want_the_same_at_once_wait_for_one(base: Path, index: PackageIndex) -> None:
    wanted, kept, said = files(index.project("greet")), dependencies(base), Said()
    index.allowed.clear()
    index.asked.clear()

    async def one(slot: int) -> str:
        async with space(base, slot) as here:
            await kept.prepare(here, wanted, known(), said)
            return (here.packages / "greet" / "__init__.py").read_text()

    jobs = [asyncio.create_task(one(slot)) for slot in range(4)]
    await asyncio.to_thread(index.asked.wait, 60)
    index.allowed.set()
    assert await asyncio.gather(*jobs) == ["WORD = 'welcome'\n"] * 4
    assert said.count("installing the workflow's packages") == 1
    assert len(wheels(index)) == 1


@each_way
async def test_when_the_job_that_installs_is_cancelled_nothing_of_it_is_left_and_the_next_one_installs(
    base: Path, index: PackageIndex, sandboxed: bool
) -> None:
    wanted, kept = files(index.project("greet")), dependencies(base, sandboxed=sandboxed)
    index.allowed.clear()
    index.asked.clear()
    async with space(base, 0, sandboxed=sandboxed) as first, space(base, 1, sandboxed=sandboxed) as second:
        installing = asyncio.create_task(kept.prepare(first, wanted, known(), Said()))
        await asyncio.to_thread(index.asked.wait, 60)
        waiting = asyncio.create_task(kept.prepare(second, wanted, known(), Said()))
        installing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await installing
        index.allowed.set()
        assert await waiting
        assert (second.packages / "greet" / "__init__.py").exists()
    assert list(base.glob(f"{NAME}/*/building-*")) == []
    assert _running_uv(base) == []


async def test_a_broken_environment_is_made_again(base: Path, index: PackageIndex) -> None:
    wanted, kept = files(index.project("greet")), dependencies(base)
    async with space(base) as here:
        await kept.prepare(here, wanted, known(), Said())
    (module,) = base.glob(f"{NAME}/trusted/*/packages/greet/__init__.py")
    module.write_text("")
    async with space(base) as here:
        await kept.prepare(here, wanted, known(), Said())
        assert (here.packages / "greet" / "__init__.py").read_text() == "WORD = 'welcome'\n"


async def test_what_a_killed_agent_left_half_made_is_removed_at_the_next_start(base: Path) -> None:
    (base / NAME / "trusted" / "building-1" / "environment").mkdir(parents=True)
    (base / NAME / "trusted" / ".new-2").mkdir()
    clear_unfinished(base)
    assert list((base / NAME / "trusted").iterdir()) == []
    assert len(list((base / trash.NAME).iterdir())) == 2


async def test_what_was_used_least_recently_goes_first_and_the_limit_is_kept(base: Path, index: PackageIndex) -> None:
    index.add("big", "1.0", {"big/data": os.urandom(300_000)})
    kept = dependencies(base, KICI_DEPENDENCY_CACHE_BYTES="900000")
    old, new = files(index.project("greet")), files(index.project("big"))
    for wanted in (old, new, old):
        async with space(base) as here:
            await kept.prepare(here, wanted, known(), Said())
    os.utime(base / NAME / "trusted" / "cache-shared", (0, 0))
    before = {path.name for path in (base / NAME / "trusted").iterdir()}
    assert len(before) == 3
    assert kept.evict(1) > 300_000
    assert {path.name for path in (base / NAME / "trusted").iterdir()} == before - {"cache-shared"}
    assert kept.evict(1) > 300_000
    assert [path.name for path in base.glob(f"{NAME}/trusted/*/packages/*")] == [
        path.name for path in base.glob(f"{NAME}/trusted/*/packages/greet*")
    ]
    index.add("bigger", "1.0", {"bigger/data": os.urandom(700_000)})
    async with space(base) as here:
        await kept.prepare(here, files(index.project("bigger")), known(), Said())
    total = sum(path.lstat().st_size for path in base.glob(f"{NAME}/**/*") if path.is_file())
    assert total <= 900_000


# ── apart ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_untrusted_event_does_not_share_what_trusted_ones_use(base: Path, index: PackageIndex) -> None:
    wanted, kept = files(index.project("greet")), dependencies(base)
    for pull_request in (False, True):
        async with space(base) as here:
            await kept.prepare(here, wanted, known(pull_request=pull_request), Said())
    assert len(wheels(index)) == 2
    assert {path.parent.name for path in base.glob(f"{NAME}/*/cache-shared")} == {"trusted", "unknown"}


@each_way
async def test_a_password_for_an_index_reaches_that_index_and_no_argument_file_or_log(
    base: Path, index: PackageIndex, sandboxed: bool
) -> None:
    wanted = files(index.project("greet", part="private"))
    kept, said = dependencies(base, sandboxed=sandboxed), Said()
    index.allowed.clear()
    index.asked.clear()
    async with space(base, sandboxed=sandboxed) as here:
        preparing = asyncio.create_task(kept.prepare(here, wanted, known(secrets=SECRETS), said))
        await asyncio.to_thread(index.asked.wait, 60)
        commands = _running_uv(base)
        assert commands
        assert not any(PASSWORD in command for command in commands)
        index.allowed.set()
        assert await preparing
    assert any(authorization for _, authorization in index.requests)
    assert not any(PASSWORD in line for line in said)
    for path in (base / NAME).rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert PASSWORD.encode() not in path.read_bytes()


@each_way
async def test_the_token_of_a_registry_reaches_its_index_and_no_argument_file_or_log(
    base: Path, index: PackageIndex, sandboxed: bool
) -> None:
    wanted = files(index.project("greet", part="private"))
    private = [LockRegistry(f"{index.url}/private/simple", "INNER_TOKEN")]
    kept, said = dependencies(base, sandboxed=sandboxed), Said()
    index.allowed.clear()
    index.asked.clear()
    async with space(base, sandboxed=sandboxed) as here:
        secrets = {"INNER_TOKEN": PASSWORD}
        preparing = asyncio.create_task(kept.prepare(here, wanted, known(secrets=secrets), said, private))
        await asyncio.to_thread(index.asked.wait, 60)
        commands = _running_uv(base)
        assert commands
        assert not any(PASSWORD in command for command in commands)
        index.allowed.set()
        assert await preparing
        assert (here.packages / "greet/__init__.py").exists()
    assert not any(PASSWORD in line for line in said)
    for path in (base / NAME).rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert PASSWORD.encode() not in path.read_bytes()


async def test_a_registry_that_sends_on_to_another_origin_gives_it_no_token(base: Path, index: PackageIndex) -> None:
    wanted = files(index.project("greet", part="private"))
    private = [LockRegistry(f"{index.url}/private/simple", "INNER_TOKEN", "inner")]
    with PackageIndex().running() as other:
        other.files = dict(index.files)
        index.moved_to = other.url.replace("127.0.0.1", "localhost")
        async with space(base) as here:
            await dependencies(base).prepare(here, wanted, known(secrets={"INNER_TOKEN": PASSWORD}), Said(), private)
        assert other.requests
        assert {authorization for _, authorization in other.requests} == {""}


async def test_a_job_without_the_token_fails_also_where_the_packages_are_kept(base: Path, index: PackageIndex) -> None:
    wanted = files(index.project("greet", part="private"))
    private, kept = [LockRegistry(f"{index.url}/private/simple", "INNER_TOKEN")], dependencies(base)
    async with space(base) as here:
        await kept.prepare(here, wanted, known(secrets={"INNER_TOKEN": PASSWORD}), Said(), private)
    async with space(base) as here:
        with pytest.raises(PreparationFailed, match=r"registry http://\S+: its token, the secret INNER_TOKEN, is not"):
            await kept.prepare(here, wanted, known(pull_request=True), Said(), private)


async def test_packages_of_a_private_index_are_found_by_no_other_repository(base: Path, index: PackageIndex) -> None:
    wanted, kept = files(index.project("greet", part="private")), dependencies(base)
    async with space(base) as here:
        await kept.prepare(here, wanted, known(secrets=SECRETS), Said())
    for secrets in ({}, {**SECRETS, "UV_INDEX_INNER_PASSWORD": "guessed"}):
        async with space(base) as here:
            with pytest.raises(PreparationFailed, match="401"):
                await kept.prepare(here, wanted, known(repo="other/repo", secrets=secrets), Said())


async def test_a_lock_file_that_names_another_origin_gets_no_password_there(base: Path, index: PackageIndex) -> None:
    wanted, kept = files(index.project("greet", part="private")), dependencies(base)
    with PackageIndex().running() as other:
        other.files = dict(index.files)
        theirs = f"{other.url}/public/files/".encode()
        wanted["uv.lock"] = re.sub(rb"http://[^\"]*/private/files/", theirs, wanted["uv.lock"])
        async with space(base) as here:
            await kept.prepare(here, wanted, known(secrets=SECRETS), Said())
        assert [authorization for _, authorization in other.requests] == [""]


# ── what cannot be installed ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_project_without_its_lock_and_a_lock_that_does_not_fit_are_refused(
    base: Path, index: PackageIndex
) -> None:
    project = files(index.project("greet"))
    index.add("other", "1.0", {"other.py": ""})
    for given, sentence in (
        ({"pyproject.toml": project["pyproject.toml"]}, "run `uv lock`"),
        ({"uv.lock": project["uv.lock"]}, "is there without .kici/pyproject.toml"),
        ({**project, "pyproject.toml": project["pyproject.toml"].replace(b"greet", b"other")}, "needs to be updated"),
    ):
        async with space(base) as here:
            with pytest.raises(PreparationFailed, match=sentence):
                await dependencies(base).prepare(here, given, known(), Said())


async def test_a_package_that_would_have_to_be_built_is_refused_with_the_way_out(
    base: Path, index: PackageIndex
) -> None:
    index.add_source("native", "1.0", "def build_wheel(*_): raise SystemExit('it ran')\n")
    async with space(base) as here:
        with pytest.raises(PreparationFailed, match="KICI_DEPENDENCY_BUILDS=true") as refused:
            await dependencies(base).prepare(here, files(index.project("native")), known(), Said())
    assert "it ran" not in str(refused.value)


HOSTILE = """
import os, pathlib, subprocess, sys
def build_wheel(*_, **__):
    def seen(path):
        try:
            return pathlib.Path(path).read_bytes()
        except OSError:
            return b""
    found = [f"uid {os.geteuid()}"]
    for name in os.listdir("/proc"):
        if name.isdigit() and name != str(os.getpid()) and b"MARKER" in seen(f"/proc/{name}/environ"):
            found.append("another process's environment")
    if "MARKER" in str(dict(os.environ)):
        found.append("the agent's environment")
    for path in ("BASE", "/root", "/home", "/run", "/etc/shadow"):
        if os.path.exists(path):
            found.append(path)
    subprocess.Popen(["sh", "-c", "sleep 1000 & sleep 1000"], start_new_session=True, stdout=-3, stderr=-3)
    raise SystemExit("found: " + ", ".join(found))
"""


@pytest.mark.skipif(not IS_ROOT, reason="a root agent has users to give")
async def test_a_hostile_build_sees_neither_the_agent_nor_its_files_and_leaves_no_process(
    base: Path, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KICI_AGENT_TOKEN", "MARKER")
    index.add_source("hostile", "1.0", HOSTILE.replace("BASE", str(base)))
    kept = dependencies(base, sandboxed=True, KICI_DEPENDENCY_BUILDS="true")
    async with space(base, sandboxed=True) as here:
        with pytest.raises(PreparationFailed) as failed:
            await kept.prepare(here, files(index.project("hostile")), known(), Said())
    found = re.search(r"found: (.*)", str(failed.value))
    assert found, str(failed.value)
    # The interpreter may lie below /root, of which nothing else is shown.
    assert [one for one in found[1].split(", ") if one != "/root"] == [f"uid {PACKAGES_UIDS['trusted']}"]
    assert _of_uid(PACKAGES_UIDS["trusted"]) == []


LINKS = """
import os, pathlib, zipfile
def build_wheel(directory, *_, **__):
    lib = pathlib.Path("/build/environment/lib")
    if lib.is_dir() and not lib.is_symlink():
        lib.rename("/build/elsewhere")
        lib.symlink_to("/build/elsewhere")
    name = "linked-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:
        wheel.writestr("linked.py", "")
        wheel.writestr("linked-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: linked\\nVersion: 1.0\\n")
        wheel.writestr("linked-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\n")
        wheel.writestr("linked-1.0.dist-info/RECORD", "linked.py,,\\n")
    return name
"""


@pytest.mark.skipif(not IS_ROOT, reason="a root agent has users to give")
async def test_an_environment_that_a_build_has_replaced_by_a_link_is_refused(base: Path, index: PackageIndex) -> None:
    index.add_source("linked", "1.0", LINKS)
    kept = dependencies(base, sandboxed=True, KICI_DEPENDENCY_BUILDS="true")
    async with space(base, sandboxed=True) as here:
        with pytest.raises(PreparationFailed, match="not where uv made it"):
            await kept.prepare(here, files(index.project("linked")), known(), Said())


def _running_uv(base: Path) -> list[str]:
    """Command lines of processes that work below `base`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError):
            continue
        if entry.name.isdigit() and " sync " in command and str(base) in command + _environ(entry) and state != "Z":
            found.append(command)
    return found


def _environ(entry: Path) -> str:
    try:
        return (entry / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _of_uid(uid: int) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            status = (entry / "status").read_text()
        except OSError:
            continue
        if f"\nUid:\t{uid}\t" in status and "\nState:\tZ" not in status:
            found.append(entry.name)
    return found
