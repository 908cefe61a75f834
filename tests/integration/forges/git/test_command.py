from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from kici.forges.git import command
from kici.forges.git.errors import GitUnavailable
from tests.support.git import WorkTree, bare, git


@pytest.fixture
def work(tmp_path: Path) -> WorkTree:
    tree = WorkTree(tmp_path / "work", bare(tmp_path / "app.git"))
    tree.commit({"a": "1"})
    tree.push()
    return tree


def trap(tmp_path: Path) -> tuple[str, Path]:
    """A program that leaves a trace when anybody runs it."""
    trace = tmp_path / "trace"
    program = tmp_path / "trap"
    program.write_text(f"#!/bin/sh\ntouch {trace}\n")
    program.chmod(0o755)
    return str(program), trace


async def test_hooks_and_helpers_of_a_repository_do_not_run(work: WorkTree, tmp_path: Path) -> None:
    program, trace = trap(tmp_path)
    for key in ("core.fsmonitor", "core.sshCommand", "core.askPass", "credential.helper"):
        git("config", key, program, cwd=work.path)
    hooks = work.path / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("reference-transaction", "post-index-change", "post-checkout"):
        os.symlink(program, hooks / name)
    for args in (
        ["status", "--porcelain"],
        ["update-ref", "refs/heads/x", "HEAD"],
        ["fetch", "ssh://127.0.0.1/x"],
        ["fetch", "http://127.0.0.1:9/x"],
    ):
        await command.run(["-C", str(work.path), *args])
    assert not trace.exists()


@pytest.mark.parametrize("url", ["ext::sh -c id", "{path}", "file://{path}", "ssh://127.0.0.1/x", "git://127.0.0.1/x"])
async def test_no_transport_but_http_is_allowed(work: WorkTree, tmp_path: Path, url: str) -> None:
    done = await command.run(["ls-remote", "--", url.format(path=tmp_path / "app.git")])
    assert done.code != 0
    assert b"not allowed" in done.stderr


async def test_the_environment_of_the_orchestrator_does_not_reach_git(
    work: WorkTree, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'alias.x=!touch /tmp/x'")
    monkeypatch.setenv("KICI_SECRET_KEY", "s3cret")
    assert "s3cret" not in str(command.environment())
    done = await command.run(["-C", str(work.path), "rev-parse", "HEAD"])
    assert done.stdout.decode().strip() == work.git("rev-parse", "HEAD")


async def test_output_is_bounded(work: WorkTree) -> None:
    work.commit({"big": "x" * 500_000})
    done = await command.run(["-C", str(work.path), "show", "HEAD:big"], max_output=1000)
    assert done.truncated
    assert done.stdout == b"x" * 1000


async def test_output_beyond_the_bound_is_not_waited_for_although_the_pipes_are_full(work: WorkTree) -> None:
    work.commit({"big": "x" * 8_000_000})
    done = await command.run(
        ["-C", str(work.path), "show", "HEAD:big"], stdin=b"y" * 1_000_000, max_output=1000, timeout_s=10
    )
    assert done.truncated
    assert done.stdout == b"x" * 1000


async def test_a_git_that_takes_too_long_is_killed_with_its_children(work: WorkTree) -> None:
    with pytest.raises(GitUnavailable, match="took longer"):
        await command.run(["-C", str(work.path), "-c", "alias.hang=!sleep 987 & sleep 986", "hang"], timeout_s=0.3)
    async with asyncio.timeout(10):
        while _sleeping():
            await asyncio.sleep(0.02)


def _sleeping() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if line[0] == b"sleep" and line[1] in (b"987", b"986"):
                found.append(entry.name)
    return found
