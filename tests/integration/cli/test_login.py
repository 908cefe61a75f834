"""`kici login`, `logout`, `workflows list` and `diagnostics` against a real server."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest
from asyncpg import Pool, Record

from kici.cli.main import program
from kici.orchestrator.identity.tokens import digest
from kici.program import run
from tests.support.api_server import TOKENS, Parts


class Said(NamedTuple):
    code: int
    out: str
    err: str


Type: TypeAlias = Callable[..., Awaitable[Said]]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("KICI_URL", "KICI_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KICI_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config" / "config"


@pytest.fixture
def kici(config: Path, capsys: pytest.CaptureFixture[str]) -> Type:
    async def call(*arguments: str) -> Said:
        capsys.readouterr()
        async with asyncio.timeout(30):
            code = await asyncio.to_thread(run, program, "kici", list(arguments))
        return Said(code, *capsys.readouterr())

    return call


async def test_a_wrong_token_is_refused_and_nothing_is_remembered(parts: Parts, kici: Type, config: Path) -> None:
    said = await kici("login", "--url", parts.url, "--token", "nonsense")
    assert said.code == 1
    assert f"{parts.url} does not accept the token (Invalid or expired token)" in said.err
    assert "nonsense" not in said.out + said.err
    assert not config.exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("expires_at = '2020-01-02 03:04:00+00'", "it expired at 2020-01-02 03:04 UTC"),
        ("revoked = true", "was revoked"),
    ],
)
async def test_a_token_that_was_good_once_says_what_became_of_it(
    parts: Parts, kici: Type, pool: Pool[Record], change: str, why: str
) -> None:
    await pool.execute(f"update admin_tokens set {change} where token_hash = $1", digest(TOKENS["admin"]))
    said = await kici("login", "--url", parts.url, "--token", TOKENS["admin"])
    assert said.code == 1
    assert why in said.err


async def test_nobody_there_and_no_url_are_told(kici: Type) -> None:
    said = await kici("login", "--url", "http://127.0.0.1:1", "--token", "x")
    assert said.code == 1
    assert "cannot be reached" in said.err
    said = await kici("login", "--token", "x")
    assert said.code == 2
    assert "--url" in said.err
    said = await kici("login", "--url", "http://127.0.0.1:1", "--token", "x", "--token-stdin")
    assert said.code == 2


async def test_what_was_remembered_serves_the_other_commands_until_logout(
    parts: Parts, kici: Type, config: Path
) -> None:
    said = await kici("login", "--url", f"{parts.url}/", "--token", TOKENS["developer"])
    assert said.code == 0, said.err
    assert "as developer (developer)" in said.out
    assert TOKENS["developer"] not in said.out + said.err
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert stat.S_IMODE(config.parent.stat().st_mode) == 0o700
    assert json.loads(config.read_text()) == {"url": parts.url, "token": TOKENS["developer"]}
    assert (await kici("runs", "list")).out.startswith("No runs found")
    # Another token for the same orchestrator needs no URL.
    assert (await kici("login", "--token", TOKENS["admin"], "--json")).code == 0
    assert json.loads(config.read_text())["token"] == TOKENS["admin"]
    assert (await kici("logout")).code == 0
    assert not config.exists()
    assert (await kici("logout", "--json")).out.strip().endswith('"forgotten": false}')
    assert "no orchestrator is configured" in (await kici("runs", "list")).err


async def test_a_token_that_ends_soon_is_said(parts: Parts, kici: Type, pool: Pool[Record]) -> None:
    await pool.execute(
        "update admin_tokens set expires_at = now() + interval '3 days 1 hour' where token_hash = $1",
        digest(TOKENS["admin"]),
    )
    said = await kici("login", "--url", parts.url, "--token", TOKENS["admin"])
    assert "warning: the token expires in 3 days" in said.err


async def test_a_variable_that_wins_over_what_was_remembered_is_said(
    parts: Parts, kici: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KICI_TOKEN", "other")
    said = await kici("login", "--url", parts.url, "--token", TOKENS["admin"])
    assert "KICI_TOKEN is set and wins" in said.err


async def test_registered_workflows_are_listed_and_filtered(parts: Parts, kici: Type, pool: Pool[Record]) -> None:
    await kici("login", "--url", parts.url, "--token", TOKENS["developer"])
    assert "No workflows found" in (await kici("workflows", "list")).out
    await pool.execute(
        """
        insert into workflow_registrations (repo_identifier, workflow_name, lock_entry, trigger_types, routing_key,
                                            customer_id, provider_context, commit_sha, updated_at, disabled)
        values ('team/app', 'ci', '{}', '{push,manual}', 'k', 'default', '{"defaultBranch": "main"}',
                '1234567890', now(), false),
               ('team/old', 'nightly', '{}', '{push}', 'k', 'default', '{}', null, now() - interval '40 days', true)
        """
    )
    out = (await kici("workflows", "list")).out.splitlines()
    assert out[2].split()[:6] == ["team/app", "ci", "push,", "manual", "main", "1234567"]
    assert "nightly (disabled)" in out[3]
    assert out[4] == "Showing 2 of 2 (offset 0, limit 100)"
    assert "nightly" not in (await kici("workflows", "list", "--trigger-type", "manual")).out
    assert "ci" not in (await kici("workflows", "list", "--stale", "30d")).out.split()
    assert "nightly" not in (await kici("workflows", "list", "--repo", "team/app")).out
    found = json.loads((await kici("workflows", "list", "--json", "--limit", "1")).out)
    assert (found["total"], [one["workflowName"] for one in found["workflows"]]) == (2, ["ci"])
    assert (await kici("workflows", "list", "--stale", "soon")).code == 2


async def test_diagnostics_say_what_works_and_what_does_not(parts: Parts, kici: Type, config: Path) -> None:
    said = await kici("diagnostics", "--json")
    found = {one["name"]: one for one in json.loads(said.out)["checks"]}
    assert said.code == 0
    assert found["git"]["status"] == "ok"
    assert (found["orchestrator"]["status"], found["repository"]["status"]) == ("warning", "warning")
    await kici("login", "--url", parts.url, "--token", TOKENS["admin"])
    config.chmod(0o644)
    said = await kici("diagnostics")
    assert "! config" in said.out
    assert parts.url in said.out
    assert "admin (admin)" in said.out
    config.write_text(json.dumps({"url": parts.url, "token": "wrong"}))
    said = await kici("diagnostics")
    assert said.code == 1
    assert "✗ token" in said.out


async def test_runs_are_completed_from_what_the_orchestrator_has(parts: Parts, kici: Type, pool: Pool[Record]) -> None:
    from click.shell_completion import ShellComplete

    await kici("login", "--url", parts.url, "--token", TOKENS["developer"])
    await pool.execute(
        """
        insert into execution_runs (run_id, workflow_name, provider, repo_identifier, ref, sha, workflow_sha,
                                    routing_key, trigger_event)
        values ('11111111-0000-4000-8000-000000000001', 'ci', 'internal', 'a/b', '', '1', '1', 'k', 'push'),
               ('22222222-0000-4000-8000-000000000001', 'ci', 'internal', 'a/b', '', '1', '1', 'k', 'push')
        """
    )
    complete = ShellComplete(program, {}, "kici", "_KICI_COMPLETE")
    found = await asyncio.to_thread(complete.get_completions, ["runs", "show"], "222")
    assert [item.value for item in found] == ["22222222-0000-4000-8000-000000000001"]
