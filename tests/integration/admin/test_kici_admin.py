"""`kici-admin` as operators run it: a process of its own against a running server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from asyncpg import Pool, Record

from kici.engine.lockfile import LockConcurrency
from tests.support.intake_server import Orchestrator
from tests.support.locks import job
from tests.support.runs import make_run

SECRET = "a secret that nobody may see"

Run: TypeAlias = "Callable[..., asyncio.Future[subprocess.CompletedProcess[str]]]"


def command(*arguments: str, env: dict[str, str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kici.admin.main", *arguments],
        env={name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ} | env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
async def orchestrator(pool: Pool[Record]) -> AsyncIterator[Orchestrator]:
    running = Orchestrator(pool)
    async with running.serve():
        yield running


@pytest.fixture
async def admin(orchestrator: Orchestrator, tmp_path: Path) -> Run:
    """Runs the program with URL and token in variables."""
    env = {
        "HOME": str(tmp_path),
        "KICI_ADMIN_URL": orchestrator.url,
        "KICI_ADMIN_TOKEN": await orchestrator.token(),
        "no_proxy": "*",
    }

    def run(*arguments: str, stdin: str = "", **more: str) -> asyncio.Future[subprocess.CompletedProcess[str]]:
        return asyncio.ensure_future(asyncio.to_thread(command, *arguments, env=env | more, stdin=stdin))

    return run


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    return file


async def test_sources_are_added_listed_and_removed(orchestrator: Orchestrator, admin: Run, secret_file: Path) -> None:
    added = await admin("source", "add", "github", "--name", "hub", "--secret-file", str(secret_file))
    assert added.returncode == 0, added.stderr
    url = f"{orchestrator.url}/webhook/default/github/hub"
    assert added.stdout == f"Source added: hub (github:hub)\nWebhook URL:  {url}\n"
    generic = await admin(
        *("source", "add", "generic", "--name", "monitor", "--verification", "api_key", "--header-name", "X-Key"),
        *("--allowed-events", "a, b", "--stdin", "--json"),
        stdin=SECRET,
    )
    assert json.loads(generic.stdout)["verificationMethod"] == "api_key"
    for name in ("hub", "monitor"):
        known = orchestrator.sources.by_name(name)
        assert known
        assert known.secrets == (SECRET.encode(),)
    listed = await admin("source", "list")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["NAME", "-------", "hub", "monitor"]
    assert url in listed.stdout
    assert [one["name"] for one in json.loads((await admin("source", "list", "--json")).stdout)["sources"]] == [
        "hub",
        "monitor",
    ]
    assert (await admin("source", "remove", "hub", "--yes")).stdout == "Removed: hub\n"
    assert orchestrator.sources.by_name("hub") is None


async def test_a_secret_comes_in_one_way_and_never_as_an_argument(admin: Run, secret_file: Path) -> None:
    start = ("source", "add", "github", "--name", "hub")
    for arguments in (start, (*start, "--stdin", "--from-env", "X")):
        refused = await admin(*arguments)
        assert refused.returncode == 2
        assert "--secret-file PATH, --from-env VAR or --stdin" in refused.stderr
    assert (await admin(*start, "--secret", SECRET)).returncode == 2
    empty = await admin(*start, "--from-env", "NOT_SET")
    assert (empty.returncode, empty.stderr) == (1, "error: the variable NOT_SET holds no secret\n")
    taken = await admin(*start, "--from-env", "MINE", "--json", MINE=SECRET)
    assert taken.returncode == 0
    assert SECRET not in taken.stdout + taken.stderr


async def test_removing_asks_first(orchestrator: Orchestrator, admin: Run, secret_file: Path) -> None:
    await admin("source", "add", "github", "--name", "hub", "--secret-file", str(secret_file))
    kept = await admin("source", "remove", "hub", stdin="n\n")
    assert (kept.returncode, kept.stdout) == (0, "")
    assert orchestrator.sources.by_name("hub")
    assert (await admin("source", "remove", "hub", stdin="y\n")).returncode == 0
    gone = await admin("source", "remove", "hub", "--yes")
    assert (gone.returncode, gone.stderr) == (1, "error: HTTP 404: there is no source 'hub'\n")


async def test_agent_tokens_are_made_listed_and_revoked(admin: Run) -> None:
    made = await admin("agent", "register", "--labels", "gpu, arm")
    id_line, token_line = made.stdout.splitlines()
    token_id, token = id_line.removeprefix("Token ID: "), token_line.removeprefix("Token:    ")
    assert token.startswith("kat_")
    listed = await admin("agent", "list")
    assert token_id in listed.stdout
    assert token[:12] in listed.stdout
    assert token not in listed.stdout
    assert "gpu,arm" in listed.stdout
    assert (await admin("agent", "revoke", token_id)).stdout == f"Revoked: {token_id}\n"
    assert json.loads((await admin("agent", "list", "--json")).stdout) == {"tokens": []}
    again = await admin("agent", "revoke", token_id)
    assert again.returncode == 1
    assert again.stderr.startswith("error: HTTP 404: ")


async def test_concurrency_groups_are_listed_and_released(orchestrator: Orchestrator, admin: Run) -> None:
    nothing = await admin("concurrency", "list")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "No concurrency group is in use" in nothing.stderr
    group = LockConcurrency("deploy-main")
    first, second = [await make_run(orchestrator.pool, [job("a", concurrency=group)]) for _ in range(2)]
    listed = [line.split()[:1] + line.split()[2:5] for line in (await admin("concurrency", "list")).stdout.splitlines()]
    assert listed[2:] == [
        ["deploy-main", "holds", first.run_id, "a"],
        ["deploy-main", "waits", second.run_id, "a"],
    ]
    only = json.loads((await admin("concurrency", "list", "--repo", "local/demo", "--json")).stdout)
    assert [one["group"] for one in only["groups"]] == ["deploy-main"]
    assert (await admin("concurrency", "release", "deploy-main", stdin="n\n")).stderr.endswith("Cancelled.\n")
    done = await admin("concurrency", "release", "deploy-main", "--run", first.run_id, "--yes")
    assert done.stdout == (
        f"Released: run {first.run_id}, job {first['a']}\nStarted:  run {second.run_id}, job {second['a']}\n"
    )
    gone = await admin("concurrency", "release", "deploy-main", "--run", first.run_id, "--yes")
    assert (gone.returncode, gone.stderr.startswith("error: HTTP 404: ")) == (1, True)


async def test_url_and_token_come_from_what_kici_up_wrote(orchestrator: Orchestrator, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "no_proxy": "*"}
    without = await asyncio.to_thread(command, "source", "list", env=env)
    assert without.returncode == 1
    assert without.stderr.startswith("error: no token: give --token or KICI_ADMIN_TOKEN")
    config = tmp_path / ".kici" / "config"
    config.parent.mkdir()
    config.write_text(json.dumps({"url": orchestrator.url, "token": await orchestrator.token()}))
    found = await asyncio.to_thread(command, "source", "list", env=env)
    assert (found.returncode, found.stdout) == (0, "")
    assert "No sources" in found.stderr
    config.write_text("{")
    broken = await asyncio.to_thread(command, "source", "list", env=env)
    assert broken.returncode == 1
    assert str(config) in broken.stderr


async def test_an_option_wins_over_a_variable(orchestrator: Orchestrator, admin: Run) -> None:
    away = await admin("-u", "http://127.0.0.1:9", "source", "list")
    assert away.returncode == 1
    assert away.stderr.startswith("error: the orchestrator at http://127.0.0.1:9 cannot be reached")
    wrong = await admin("-t", "0" * 64, "source", "list")
    assert wrong.stderr == "error: HTTP 401: Invalid or expired token\n"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["source", "--help"], ["source", "add", "github", "-h"], ["agent", "register", "--help"]]
)
def test_help_needs_no_token_no_server_and_nothing_heavy(tmp_path: Path, arguments: list[str]) -> None:
    program = (
        "import sys; from kici.admin.main import program; from kici.program import run;"
        "code = run(program, 'kici-admin', sys.argv[1:]);"
        "heavy = {'asyncio', 'httpx', 'rich', 'kici.sdk', 'kici.orchestrator'} & set(sys.modules);"
        "print(sorted(heavy), file=sys.stderr);"
        "sys.exit(code)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ} | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.returncode == 0
    assert shown.stdout.startswith("Usage: kici-admin")
    assert shown.stderr == "[]\n"


def test_the_version_is_told(tmp_path: Path) -> None:
    for option in ("-V", "--cli-version"):
        assert command(option, env={"HOME": str(tmp_path)}).stdout.count(".") == 2


def test_what_is_called_wrongly_ends_with_2(tmp_path: Path) -> None:
    for arguments in (["nonsense"], ["source", "nonsense"], ["source", "add", "github"], ["--nonsense"], ["source"]):
        called = command(*arguments, env={"HOME": str(tmp_path)})
        assert called.returncode == 2, arguments
        assert "Traceback" not in called.stderr
        assert called.stderr


async def test_connected_agents_are_listed_with_their_sandbox_and_what_it_lacks(admin: Run, pool: Pool[Record]) -> None:
    assert "No agent is connected" in (await admin("agent", "connected")).stderr
    await pool.execute(
        """
        insert into coordinators (instance, lease_expires_at, version) values ('here', now() + interval '1 day', 't')
        """
    )
    for name, facts in (
        ("builder", {"sandbox": "bubblewrap", "sandbox_profile": "image-build", "sandbox_fallback": ""}),
        ("open", {"sandbox": "none", "sandbox_fallback": "no sandbox: \x1b[2Jno namespaces"}),
        ("old", {}),
    ):
        await pool.execute(
            """
            insert into agent_sessions (id, agent_id, boot_id, coordinator, protocol, version, labels, slots, facts)
            values (gen_random_uuid(), $1, 'boot', 'here', 1, '1.0', '{gpu}', 2, $2)
            """,
            name,
            facts,
        )
    told = await admin("agent", "connected")
    rows = {line.split()[0]: line for line in told.stdout.splitlines()[2:]}
    assert "bubblewrap (image-build)" in rows["builder"]
    assert rows["open"].split()[4] == "none"
    assert rows["old"].split()[4] == "?"
    assert told.stderr == "open: jobs are less protected than they could be: no sandbox: ?[2Jno namespaces\n"
    listed = json.loads((await admin("agent", "connected", "--json")).stdout)["agents"]
    assert [one["agentId"] for one in listed] == ["builder", "old", "open"]
