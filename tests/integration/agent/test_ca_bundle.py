"""A private certificate authority: one setting for the agent, git and the tools of jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kici.agent import ca_bundle, checkout, environment, workspace
from kici.agent.errors import NoAnswer, PreparationFailed, SettingsInvalid
from kici.agent.git import Remote
from kici.agent.job_api import JobApi
from kici.agent.workspace import Owner
from kici.engine.events import Event, EventType
from kici.wire.agent import Checkout, Dispatch
from kici.wire.context import JobContext
from tests.support.certificates import authority
from tests.support.kici_repository import KiciRepository
from tests.support.mirrors import no_mirrors
from tests.support.web import Web

DISPATCH = Dispatch("r", "j", 1, "ci", "build", "build", Checkout("", "", ""), "", "kjt_1")
OWNERS = [None, Owner(60_999, 60_999)] if os.geteuid() == 0 else [None]


@pytest.fixture
def bundle(base: Path) -> Path:
    """Where the slots' users cannot go."""
    directory = base / "operator"
    directory.mkdir(mode=0o700)
    return directory / "bundle.pem"


@pytest.fixture
def tls(base: Path, bundle: Path) -> Iterator[Web]:
    """Whose certificate is by the authority of the bundle."""
    with Web(base / "repositories", authority(bundle)).running() as running:
        yield running


@pytest.mark.parametrize("owner", OWNERS, ids=str)
async def test_git_believes_the_bundle_and_nobody_without_it(
    base: Path, tls: Web, bundle: Path, owner: Owner | None
) -> None:
    repository = KiciRepository(base / "repositories" / "repo", {"build": ["true"]})
    wanted = Checkout(f"{tls.url}/git/repo/.git", repository.sha, repository.sha)
    source = Remote(wanted.url, "")
    (base / "work").mkdir(mode=0o700)
    with (
        workspace.opened(base / "work", 0, owner) as space,
        pytest.raises(PreparationFailed, match=r"(?i)certificate"),
    ):
        await checkout.fetch(space, source, wanted, no_mirrors(space.root), print)
    with workspace.opened(base / "work", 0, owner) as space:
        copy = ca_bundle.hand_over(bundle, space)
        await checkout.fetch(space, source, wanted, no_mirrors(space.root), print)
        assert copy.read_bytes() == bundle.read_bytes()
        assert copy.stat().st_mode & 0o777 == 0o644


async def test_the_agents_own_requests_believe_it_and_nothing_else_once_it_has_changed(
    base: Path, tls: Web, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked() -> int:
        async with JobApi(tls.url, DISPATCH, pauses_s=()).client() as client:
            return (await client.get(f"{tls.url}/j/context")).status_code

    tls.contexts["j"] = b"{}"
    with pytest.raises(NoAnswer, match="certificate"):
        await asked()
    monkeypatch.setenv("SSL_CERT_FILE", "")
    ca_bundle.use(bundle, os.environ)
    assert await asked() == 200
    own = bundle.read_bytes()
    authority(base / "another.pem")
    replace(bundle, (base / "another.pem").read_bytes())
    with pytest.raises(NoAnswer, match="certificate"):
        await asked()
    replace(bundle, own)
    assert await asked() == 200


def replace(bundle: Path, content: bytes) -> None:
    """As an operator does who gets a new one; the clock of the file system goes on in between."""
    before = bundle.stat().st_mtime_ns
    bundle.write_bytes(content)
    os.utime(bundle, ns=(before + 1_000_000, before + 1_000_000))


def test_tools_of_jobs_are_told_of_the_copy_unless_the_job_says_otherwise() -> None:
    context = JobContext(
        run_id="r", job_id="j", attempt=1, workflow="ci", job="build", name="build",
        event=Event(type=EventType.PUSH), env={"PIP_CERT": "mine"},
    )  # fmt: skip
    machine = {
        "HTTPS_PROXY": "http://proxy:3128",
        "HTTP_PROXY": "http://user:password@proxy",
        "no_proxy": "near",
        "X": "1",
    }
    found = environment.of_job(
        context, sha="", ref="", home="/work/home", tmp="/tmp", ca_bundle="/work/ca-bundle.pem", machine=machine
    )
    assert {name: found[name] for name in ca_bundle.VARIABLES} == {
        **dict.fromkeys(ca_bundle.VARIABLES, "/work/ca-bundle.pem"),
        "PIP_CERT": "mine",
    }
    assert found["HTTPS_PROXY"] == "http://proxy:3128"
    assert found["no_proxy"] == "near"
    assert not {"HTTP_PROXY", "X"} & found.keys()


@pytest.mark.parametrize("content", [None, b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_a_bundle_that_is_none_stops_the_start(base: Path, content: bytes | None) -> None:
    if content is not None:
        (base / "ca.pem").write_bytes(content)
    with pytest.raises(SettingsInvalid, match=r"KICI_CA_BUNDLE names .*ca\.pem"):
        ca_bundle.check(base / "ca.pem")


def test_the_agent_says_at_its_start_that_the_bundle_is_none(base: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kici.agent.main"],
        env={
            "PATH": os.environ["PATH"],
            "KICI_ORCHESTRATOR_URL": "ws://127.0.0.1:1",
            "KICI_CA_BUNDLE": str(base / "none"),
            "KICI_WORK_DIR": str(base / "work"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 1
    assert "KICI_CA_BUNDLE names" in done.stderr
