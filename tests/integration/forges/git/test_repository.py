from __future__ import annotations

import asyncio
import json
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import kici
from kici.forges.git.repository import keep
from kici.forges.local.hook_files import HookConfig, config_file
from tests.support.git import WorkTree, git
from tests.support.serving import serving


class Receiver:
    """Stands at the other end of the hook and keeps the bodies."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.bodies.append(json.loads(body))
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter that finds kici although the hook starts it isolated from the environment."""
    source = Path(kici.__file__).parents[1]
    start = (
        f"import runpy, sys; sys.path.insert(0, {str(source)!r}); runpy.run_module(sys.argv[1], run_name='__main__')"
    )
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\n[ "$1 $2" = "-I -m" ] && exec {sys.executable} -I -c "{start}" "$3"\n')
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
async def url(receiver: Receiver) -> AsyncIterator[str]:
    async with serving(receiver) as base:
        yield f"{base}/webhook/local"


async def test_a_push_to_it_is_told_to_the_orchestrator(
    url: str, receiver: Receiver, tmp_path: Path, python: str
) -> None:
    repository = tmp_path / "data" / "app.git"
    await keep(repository, HookConfig(url, "s3cret", "local/app"), python=python)
    work = WorkTree(tmp_path / "work", repository)
    sha = work.commit({"a": "1"}, "first")
    await asyncio.to_thread(work.push)
    (told,) = receiver.bodies
    assert (told["repository"], told["ref"], told["after"]) == ("local/app", "refs/heads/main", sha)
    assert (told["default_branch"], told["message"]) == ("main", "first")


async def test_keeping_it_again_changes_only_what_is_different(
    url: str, receiver: Receiver, tmp_path: Path, python: str
) -> None:
    repository = tmp_path / "app.git"
    await keep(repository, HookConfig("http://127.0.0.1:9/webhook/local", "old", "local/app"))
    work = WorkTree(tmp_path / "work", repository)
    first = work.commit({"a": "1"})
    await asyncio.to_thread(work.push)
    await keep(repository, HookConfig(url, "new", "local/app"), python=python)
    await keep(repository, HookConfig(url, "new", "local/app"), python=python)
    assert git("rev-parse", "main", cwd=repository) == first
    assert json.loads(config_file(repository).read_text())["secret"] == "new"
    work.commit({"a": "2"})
    await asyncio.to_thread(work.push)
    assert receiver.bodies[-1]["before"] == first


async def test_its_secret_is_for_its_owner_only(tmp_path: Path) -> None:
    repository = tmp_path / "app.git"
    await keep(repository, HookConfig("http://127.0.0.1:9/", "s3cret", "local/app"))
    assert stat.S_IMODE(config_file(repository).stat().st_mode) == 0o600
    assert stat.S_IMODE(repository.stat().st_mode) & 0o077 == 0
    hook = (repository / "hooks" / "post-receive").read_text()
    assert sys.executable in hook
    assert "s3cret" not in hook


async def test_it_lets_a_commit_be_fetched_by_its_id_and_in_part(tmp_path: Path) -> None:
    repository = tmp_path / "app.git"
    await keep(repository, HookConfig("http://127.0.0.1:9/", "s", "local/app"))
    assert git("config", "uploadpack.allowAnySHA1InWant", cwd=repository) == "true"
    assert git("config", "uploadpack.allowFilter", cwd=repository) == "true"
    assert git("symbolic-ref", "HEAD", cwd=repository) == "refs/heads/main"
    assert [file.name for file in tmp_path.iterdir()] == ["app.git"]
