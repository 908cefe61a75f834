"""An agent process, and workflows that import packages of their own."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from kici.engine.events import Event, EventType
from kici.engine.lockfile import LockRegistry
from kici.wire.agent import Checkout, Dispatch
from kici.wire.context import JobContext
from tests.support import agent_process
from tests.support.agent_orchestrator import Orchestrator
from tests.support.kici_repository import KiciRepository
from tests.support.package_index import PASSWORD, PackageIndex
from tests.support.web import Web

JOB = "0f0f0f0f-0000-0000-0000-000000000001"
COMMANDS = ("test ! -w /work/packages/greet && echo closed || echo open",)


def dispatch(web: Web, repository: KiciRepository, secrets: Mapping[str, str] = {}) -> Dispatch:
    event = Event(EventType.PUSH, branch="main", sha=repository.sha, repo="me/repo")
    context = JobContext("run", JOB, 1, "ci", "build", "build", event, secrets=dict(secrets))
    web.contexts[JOB] = msgspec.msgpack.encode(context)
    return Dispatch(
        *("run", JOB, 1, "ci", "build", "build"),
        checkout=Checkout(f"{web.url}/git/repo/.git", repository.sha, repository.sha),
        lock_sha256=repository.lock_sha256,
        job_token="kjt_" + "fedcba9876543210" * 4,
        context=context,
    )


@pytest.mark.parametrize("sandbox", ["false", "auto"])
async def test_a_workflow_imports_what_its_lock_names_and_its_steps_cannot_write_there(
    web: Web, orchestrator: Orchestrator, sandbox: str
) -> None:
    base = web.repositories.parent
    repository = KiciRepository(web.repositories / "repo", {"build": COMMANDS})
    with PackageIndex().running() as index:
        index.add("greet", "1.0", {"greet/__init__.py": "WORD = 'welcome'\n"})
        module = (repository.root / ".kici/workflows/ci.py").read_text()
        repository.write(
            {
                **index.project("greet"),
                ".kici/workflows/ci.py": f"import greet\nprint(greet.WORD, greet.__file__)\n{module}",
            }
        )
        repository.lock({"build": COMMANDS})
        repository.commit()
        async with agent_process.running(base, orchestrator.url, {"KICI_SANDBOX": sandbox}) as agent:
            await orchestrator.send(dispatch(web, repository))
            end = await orchestrator.end(JOB)
            assert (end.status, end.error) == ("success", ""), agent.log()
            preparation = await orchestrator.log(JOB, -1, "greet==1.0")
            assert "installing the workflow's packages" in preparation
            said = await orchestrator.log(JOB, 0)
            assert "welcome " in said
            if sandbox == "auto" and '"sandbox": "bubblewrap"' in agent.log():
                assert "welcome /work/packages/greet/__init__.py" in said
                assert "closed" in said


@pytest.mark.parametrize("secrets", [{"INNER_TOKEN": PASSWORD}, {}], ids=["with the token", "without"])
async def test_a_registry_of_the_lock_file_is_opened_with_the_job_s_secret_and_without_it_no_step_runs(
    web: Web, orchestrator: Orchestrator, secrets: Mapping[str, str]
) -> None:
    base = web.repositories.parent
    with PackageIndex().running() as index:
        index.add("greet", "1.0", {"greet/__init__.py": "WORD = 'welcome'\n"})
        registry = LockRegistry(f"{index.url}/private/simple", "INNER_TOKEN")
        repository = KiciRepository(web.repositories / "repo", {"build": ("echo ran",)}, registries=(registry,))
        repository.write(index.project("greet", part="private"))
        repository.lock({"build": ("echo ran",)})
        repository.commit()
        async with agent_process.running(base, orchestrator.url, {}) as agent:
            await orchestrator.send(dispatch(web, repository, secrets))
            end = await orchestrator.end(JOB)
            log = agent.log()
    assert PASSWORD not in log
    if secrets:
        assert (end.status, end.error) == ("success", ""), log
    else:
        assert (end.status, end.reason, end.failed_before_user_code) == ("failed", "preparation", True)
        assert f"registry {registry.url}: its token, the secret INNER_TOKEN, is not among the secrets" in end.error
