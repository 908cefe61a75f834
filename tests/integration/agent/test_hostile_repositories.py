"""Repositories that try to run something, to write elsewhere, or to get at a credential."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kici.agent import checkout, fetching, submodules, workspace
from kici.agent.errors import PreparationFailed
from kici.agent.git import Remote, basic
from kici.agent.workspace import Owner, Workspace
from kici.engine.lockfile import LockCheckout, SubmoduleLevels
from kici.wire.agent import Checkout
from tests.support.kici_repository import KiciRepository
from tests.support.mirrors import mirrors
from tests.support.web import Web

OWNERS = [None, Owner(60_999, 60_999)] if os.geteuid() == 0 else [None]
PASSWORD = "hunter2-" + "x" * 20
HEADER = basic("", PASSWORD)
EVERYTHING = LockCheckout(depth=0, submodules=SubmoduleLevels.ALL, tags=True)


@pytest.fixture
def repository(base: Path) -> KiciRepository:
    return KiciRepository(base / "repositories" / "repo", {"build": ["true"]})


@pytest.fixture
def mark(base: Path) -> Path:
    """What a command of the repository would make."""
    (base / "marks").mkdir(mode=0o777)
    (base / "marks").chmod(0o777)
    return base / "marks" / "ran"


async def check_out(
    space: Workspace, web: Web, sha: str, authorization: str = "", said: list[str] | None = None
) -> None:
    wanted = Checkout(f"{web.url}/git/repo/.git", sha, sha)
    source = Remote(wanted.url, authorization)
    tell = (said if said is not None else []).append
    kept = mirrors(space.root.parent.parent)
    git = await checkout.fetch(space, source, wanted, kept, tell)
    await checkout.work_tree(git, source, wanted, EVERYTHING, kept, tell)


@asynccontextmanager
async def opened(base: Path, owner: Owner | None) -> AsyncIterator[Workspace]:
    (base / "work").mkdir(mode=0o700, exist_ok=True)
    async with asyncio.timeout(60):
        with workspace.opened(base / "work", 0, owner) as space:
            yield space


def tree(repository: KiciRepository, entries: list[tuple[str, bytes, str]]) -> str:
    """A tree of mode, name and object that git itself would refuse to make."""
    raw = b"".join(mode.encode() + b" " + name + b"\0" + bytes.fromhex(sha) for mode, name, sha in entries)
    made = subprocess.run(
        ["git", "hash-object", "-t", "tree", "-w", "--literally", "--stdin"],
        cwd=repository.root, input=raw, capture_output=True, check=True,
    )  # fmt: skip
    return made.stdout.decode().strip()


def blob(repository: KiciRepository, content: bytes) -> str:
    made = subprocess.run(
        ["git", "hash-object", "-w", "--stdin"], cwd=repository.root, input=content, capture_output=True, check=True
    )
    return made.stdout.decode().strip()


def commit(repository: KiciRepository, root: str) -> str:
    sha = repository.git("commit-tree", "-m", "hostile", root)
    repository.git("update-ref", "refs/heads/main", sha)
    return sha


@pytest.mark.parametrize("owner", OWNERS, ids=str)
@pytest.mark.parametrize(
    "name",
    [b".git", b".GIT", b".Git", b"git~1", ".g\u200cit".encode(), b".git ", b".git.", b".git::$INDEX_ALLOCATION"],
)
async def test_a_directory_that_is_git_by_another_name_is_refused(
    base: Path, web: Web, repository: KiciRepository, mark: Path, owner: Owner | None, name: bytes
) -> None:
    config = blob(repository, f"[core]\n\tfsmonitor = touch {mark}\n\thooksPath = hooks\n".encode())
    hook = blob(repository, f"#!/bin/sh\ntouch {mark}\n".encode())
    hooks = tree(repository, [("100755", b"post-checkout", hook)])
    inner = tree(repository, [("100644", b"config", config), ("40000", b"hooks", hooks)])
    sha = commit(repository, tree(repository, [("40000", name, inner), ("100644", b"z", hook)]))
    async with opened(base, owner) as space:
        with pytest.raises(PreparationFailed, match="invalid path"):
            await check_out(space, web, sha)
        assert "fsmonitor" not in (space.src / ".git" / "config").read_text()
        assert not (space.src / ".git" / "hooks").exists()
    assert not mark.exists()


@pytest.mark.parametrize("owner", OWNERS, ids=str)
@pytest.mark.parametrize("name", [b"a", b".git"])
async def test_nothing_is_written_through_a_link_of_the_tree(
    base: Path, web: Web, repository: KiciRepository, owner: Owner | None, name: bytes
) -> None:
    outside = base / "outside"
    outside.mkdir()
    outside.chmod(0o777)
    link = blob(repository, str(outside).encode())
    inner = tree(repository, [("100644", b"b", blob(repository, b"evil"))])
    sha = commit(repository, tree(repository, [("120000", name, link), ("40000", name, inner)]))
    async with opened(base, owner) as space:
        with contextlib.suppress(PreparationFailed):
            await check_out(space, web, sha)
        assert not (space.src / ".git").is_symlink()
    assert list(outside.iterdir()) == []


async def test_a_submodule_behind_a_link_writes_nothing_there(base: Path, web: Web, repository: KiciRepository) -> None:
    outside = base / "outside"
    (outside / "lib").mkdir(parents=True)
    link = blob(repository, str(outside).encode())
    modules = blob(repository, b'[submodule "x"]\n\tpath = a/lib\n\turl = ../.git\n')
    inner = tree(repository, [("160000", b"lib", repository.sha)])
    root = tree(repository, [("100644", b".gitmodules", modules), ("120000", b"a", link), ("40000", b"a", inner)])
    sha = commit(repository, root)
    async with opened(base, None) as space:
        with contextlib.suppress(PreparationFailed):
            await check_out(space, web, sha)
        shutil.rmtree(space.src / "a", ignore_errors=True)
        (space.src / "a").unlink(missing_ok=True)
        (space.src / "a").symlink_to(outside)
        with pytest.raises(PreparationFailed, match="behind something that is no directory"):
            submodules.check_place(space.src, "a/lib")
    assert list((outside / "lib").iterdir()) == []


@pytest.mark.parametrize("owner", OWNERS, ids=str)
async def test_names_and_sizes_that_are_odd_but_harmless_come_through(
    base: Path, web: Web, repository: KiciRepository, owner: Owner | None
) -> None:
    small = blob(repository, b"x")
    big = blob(repository, b"\0" * 100_000_000)
    names = [b"-rf", b"100 MB", b"a\nb", b"caf\xe9 \xff", b"\x1b[31m", "\u202egpj".encode()]
    root = tree(repository, [("100644", name, big if name == b"100 MB" else small) for name in sorted(names)])
    sha = commit(repository, root)
    async with opened(base, owner) as space:
        await check_out(space, web, sha)
        assert sorted(os.listdir(os.fsencode(space.src))) == sorted([*names, b".git"])
        assert (space.src / "100 MB").stat().st_size == 100_000_000


@pytest.mark.parametrize("owner", OWNERS, ids=str)
async def test_nothing_that_a_machine_or_a_repository_is_configured_with_runs(
    base: Path, web: Web, repository: KiciRepository, mark: Path, owner: Owner | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = base / "program"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {shlex.quote(str(mark))}\n')
    program.chmod(0o755)
    templates = base / "templates" / "hooks"
    templates.mkdir(parents=True)
    for hook in ("post-checkout", "reference-transaction", "post-index-change", "fsmonitor-watchman"):
        (templates / hook).symlink_to(program)
    evil = base / "evil.config"
    evil.write_text(
        f"[core]\n fsmonitor = {program}\n hooksPath = {templates}\n sshCommand = {program}\n askPass = {program}\n"
        f" gitProxy = {program}\n pager = {program}\n editor = {program}\n attributesFile = {base}/attributes\n"
        f"[credential]\n helper = {program}\n[init]\n templateDir = {base}/templates\n"
        f"[alias]\n fetch = !{program}\n checkout = !{program}\n[diff]\n external = {program}\n"
        f'[filter "evil"]\n smudge = {program}\n clean = {program}\n process = {program}\n required = true\n'
        f'[diff "evil"]\n textconv = {program}\n command = {program}\n[merge "evil"]\n driver = {program}\n'
        f'[protocol]\n allow = always\n[url "ext::{program} "]\n insteadOf = {web.url}\n'
        f'[remote "origin"]\n uploadpack = {program}\n vcs = ext\n[uploadpack]\n packObjectsHook = {program}\n'
    )
    (base / "attributes").write_text("* filter=evil diff=evil merge=evil\n")
    (base / "home").mkdir()
    (base / "home" / ".gitconfig").write_text(f'[includeIf "gitdir:/**"]\n path = {evil}\n[include]\n path = {evil}\n')
    for name, value in {
        "HOME": str(base / "home"),
        "XDG_CONFIG_HOME": str(base / "home"),
        "GIT_CONFIG_GLOBAL": str(evil),
        "GIT_CONFIG_SYSTEM": str(evil),
        "GIT_CONFIG_PARAMETERS": f"'core.fsmonitor'='{program}'",
        "GIT_TEMPLATE_DIR": str(base / "templates"),
        "GIT_SSH_COMMAND": str(program),
        "GIT_ASKPASS": str(program),
        "GIT_EXTERNAL_DIFF": str(program),
        "GIT_EXEC_PATH": str(base / "templates"),
        "GIT_DIR": str(base / "nowhere"),
        "GIT_TRACE_CURL": str(base / "marks" / "trace"),
        "GIT_TRACE_REDACT": "0",
    }.items():
        monkeypatch.setenv(name, value)
    repository.write({".gitattributes": "* filter=evil diff=evil merge=evil\n[attr]binary filter=evil\n"})
    sha = repository.commit()
    async with opened(base, owner) as space:
        (space.home / ".gitconfig").write_text(evil.read_text())
        await check_out(space, web, sha)
        assert (space.src / ".gitattributes").exists()
    assert not list(mark.parent.iterdir())
    for name in ("GIT_DIR", "GIT_EXEC_PATH"):
        monkeypatch.delenv(name)
    plain = await asyncio.create_subprocess_exec(
        *("git", "clone", f"{web.url}/git/repo/.git", str(base / "x")), stdin=asyncio.subprocess.DEVNULL
    )
    await plain.wait()
    assert mark.exists(), "a git that is not hardened runs it"


# ── the credential ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("owner", OWNERS, ids=str)
async def test_no_process_has_the_credential_among_its_arguments_and_none_is_left_after_a_cancel(
    base: Path, web: Web, repository: KiciRepository, owner: Owner | None
) -> None:
    web.git_allowed.clear()
    async with opened(base, owner) as space:
        fetching_it = asyncio.ensure_future(check_out(space, web, repository.sha, HEADER))
        await asyncio.to_thread(web.git_asked.wait, 20)
        running = {pid: words for pid, words in _arguments().items() if str(web.url).encode() in words}
        assert running, "git should be waiting for the server"
        assert not any(PASSWORD.encode() in words or HEADER.split()[1].encode() in words for words in running.values())
        fetching_it.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching_it
        while left := running.keys() & _arguments().keys():
            await asyncio.sleep(0.01)
    assert not left


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
async def test_what_a_server_answers_is_told_without_the_credential(
    base: Path, web: Web, repository: KiciRepository, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "FIRST_PAUSE_S", 0.0)
    web.git_status = status
    said: list[str] = []
    async with opened(base, None) as space:
        with pytest.raises(PreparationFailed) as refused:
            await check_out(space, web, repository.sha, HEADER, said)
    assert ("may not read it" in str(refused.value)) == (status < 429)
    assert len([text for text in said if "trying again" in text]) == (0 if status < 429 else fetching.TRIES - 1)
    for text in (str(refused.value), repr(refused.value), *said):
        assert PASSWORD not in text
        assert HEADER.split()[1] not in text


async def test_a_redirect_to_another_host_says_so_and_takes_no_credential_along(
    base: Path, web: Web, repository: KiciRepository
) -> None:
    with Web(base / "repositories").running() as elsewhere:
        web.redirect_to = elsewhere.url
        async with opened(base, None) as space:
            with pytest.raises(PreparationFailed, match="register the new address"):
                await check_out(space, web, repository.sha, HEADER)
        assert elsewhere.requests == []


async def test_a_server_that_always_closes_in_the_middle_of_a_pack_fails_the_job(
    base: Path, web: Web, repository: KiciRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "FIRST_PAUSE_S", 0.0)
    web.cut_answers = 100
    said: list[str] = []
    async with opened(base, None) as space:
        with pytest.raises(PreparationFailed, match="git fetch failed"):
            await check_out(space, web, repository.sha, HEADER, said)
    assert len([text for text in said if "trying again" in text]) == fetching.TRIES - 1


async def test_a_server_that_never_answers_fails_the_job(
    base: Path, web: Web, repository: KiciRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "FETCH_S", 0.3)
    monkeypatch.setattr(fetching, "TRIES", 1)
    web.git_allowed.clear()
    async with opened(base, None) as space:
        with pytest.raises(PreparationFailed, match="took longer than"):
            await check_out(space, web, repository.sha, HEADER)


def _arguments() -> dict[str, bytes]:
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            found[place.name] = (place / "cmdline").read_bytes()
        except OSError:
            continue
    return {pid: words for pid, words in found.items() if words}
