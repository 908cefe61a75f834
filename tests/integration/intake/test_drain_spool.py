"""A push to the local repository reaches the event log, whether or not an orchestrator was there to hear of it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import pytest

from kici.forges.contract import Normalized
from kici.forges.local import spool
from kici.forges.local.hook_files import spool_directory
from kici.orchestrator.errors import Conflict
from kici.orchestrator.intake.drain_spool import DrainSpool, Pass, Settings
from kici.orchestrator.intake.internal_source import register_internal_source
from kici.orchestrator.store.sources import NewSource
from tests.support.intake_server import Orchestrator
from tests.support.local_repository import SECRET

Git: TypeAlias = "Callable[..., subprocess.CompletedProcess[str]]"
Commit: TypeAlias = "Callable[..., str]"
Hooked: TypeAlias = "Callable[[str], Path]"

NOBODY = "http://127.0.0.1:9/webhook/demo"


async def register(orchestrator: Orchestrator, secret: str = SECRET) -> None:
    await register_internal_source(
        orchestrator.pool, orchestrator.secrets, orchestrator.sources, name="demo", secret=secret
    )


def drain(orchestrator: Orchestrator, repository: Path) -> DrainSpool:
    return DrainSpool(orchestrator.intake, orchestrator.sources, Settings("demo", spool_directory(repository)))


async def commits_of(orchestrator: Orchestrator) -> list[str]:
    found = []
    for row in await orchestrator.rows():
        source = orchestrator.sources.by_routing_key(row["routing_key"])
        assert source
        normalized = source.forge.normalize(row["event"], row["headers"], bytes(row["body"]), source.view)
        assert isinstance(normalized, Normalized)
        found.append(normalized.event.sha)
    return found


async def test_a_push_is_delivered_by_its_hook(
    orchestrator: Orchestrator, git: Git, commit: Commit, hooked: Hooked
) -> None:
    await register(orchestrator)
    repository = hooked(f"{orchestrator.url}/webhook/demo")
    sha = commit("Say hello", "a.txt")
    pushed = await asyncio.to_thread(git, "push", "origin", "main")
    assert "the orchestrator has the push" in pushed.stderr
    assert await commits_of(orchestrator) == [sha]
    assert list(spool.waiting(spool_directory(repository))) == []
    assert await drain(orchestrator, repository).run_once() == Pass()


async def test_pushes_while_no_orchestrator_ran_are_taken_in_when_it_is_back(
    orchestrator: Orchestrator, git: Git, commit: Commit, hooked: Hooked
) -> None:
    repository = hooked(NOBODY)
    shas = []
    for message in ("First", "Second"):
        shas.append(commit(message, "a.txt"))
        await asyncio.to_thread(git, "push", "origin", "main")
    service = drain(orchestrator, repository)
    assert await service.run_once() == Pass(left=2)
    await register(orchestrator)
    assert await service.run_once() == Pass(accepted=2)
    assert await service.run_once() == Pass()
    assert await commits_of(orchestrator) == shas
    assert orchestrator.notifier.announced == ["kici_events"] * 2


async def test_a_push_that_was_delivered_and_not_forgotten_is_one_row(
    orchestrator: Orchestrator, git: Git, commit: Commit, hooked: Hooked, tmp_path: Path
) -> None:
    await register(orchestrator)
    repository = hooked(NOBODY)
    commit("Say hello")
    await asyncio.to_thread(git, "push", "origin", "main")
    [kept] = spool.waiting(spool_directory(repository))
    copy = kept.file.read_bytes()
    service = drain(orchestrator, repository)
    await service.run_once()
    kept.file.write_bytes(copy)
    assert await service.run_once() == Pass(duplicates=1)
    assert len(await orchestrator.rows()) == 1


async def test_what_can_never_be_read_is_set_aside_and_the_rest_goes_on(
    orchestrator: Orchestrator, tmp_path: Path, git: Git, commit: Commit, hooked: Hooked
) -> None:
    await register(orchestrator)
    repository = hooked(NOBODY)
    spool.write(spool_directory(repository), b"not json")
    commit("Say hello")
    await asyncio.to_thread(git, "push", "origin", "main")
    assert await drain(orchestrator, repository).run_once() == Pass(accepted=1, refused=1)
    assert [file.suffix for file in spool_directory(repository).iterdir()] == [".refused"]


async def test_the_service_drains_at_its_start_and_then_from_time_to_time(
    orchestrator: Orchestrator, tmp_path: Path
) -> None:
    passes: asyncio.Queue[Pass] = asyncio.Queue()
    settings = Settings("demo", tmp_path / "none", interval=timedelta(milliseconds=5))
    service = DrainSpool(orchestrator.intake, orchestrator.sources, settings, on_pass=passes.put_nowait)
    running = asyncio.create_task(service.run())
    try:
        async with asyncio.timeout(10):
            assert [await passes.get() for _ in range(3)] == [Pass()] * 3
    finally:
        running.cancel()


async def test_registering_again_replaces_the_secret_and_keeps_the_source(
    orchestrator: Orchestrator, git: Git, commit: Commit, hooked: Hooked
) -> None:
    hooked(f"{orchestrator.url}/webhook/demo")
    await register(orchestrator, "an older secret")
    commit("Say hello")
    assert "refused it" in (await asyncio.to_thread(git, "push", "origin", "main")).stderr
    await register(orchestrator)
    commit("Say more")
    assert "has the push" in (await asyncio.to_thread(git, "push", "origin", "main")).stderr
    assert await orchestrator.pool.fetchval("select count(*) from generic_webhook_sources") == 1


async def test_a_repository_does_not_take_over_the_name_of_another_source(orchestrator: Orchestrator) -> None:
    await orchestrator.add(NewSource(name="demo", provider="github"))
    with pytest.raises(Conflict, match="demo"):
        await register(orchestrator)
