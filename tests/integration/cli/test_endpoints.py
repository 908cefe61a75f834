"""`kici endpoints`, `kici docs` and `kici run remote`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kici.cli.main import program
from kici.engine.lockfile import PATH, GenericWebhookTrigger, ManualTrigger, PushTrigger
from kici.program import run
from tests.support.locks import lock, workflow


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KICI_URL", raising=False)
    monkeypatch.setenv("KICI_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".kici").mkdir()
    return tmp_path


def test_without_a_lock_file_it_says_what_to_do(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(program, "kici", ["endpoints"]) == 1
    assert "run `kici compile`" in capsys.readouterr().err


def test_endpoints_are_grouped_by_who_sends(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / PATH).write_bytes(
        lock(workflow("ci", on=[PushTrigger(), GenericWebhookTrigger("shop", ("order",)), ManualTrigger()]))
    )
    assert run(program, "kici", ["endpoints", "--url", "https://ci.example.com/"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "From the forge",
        "  POST https://ci.example.com/webhook/SOURCE",
        "    ci: push",
        "From other senders",
        "  POST https://ci.example.com/webhook/shop",
        "    ci: generic_webhook (order)",
        "Without a webhook",
        "    ci: manual",
    ]
    assert run(program, "kici", ["endpoints", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["endpoints"]
    assert [one["group"] for one in found] == ["git", "webhook", "none"]
    assert found[0]["url"] == "https://ORCHESTRATOR/webhook/SOURCE"


def test_the_documentation_comes_along(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(program, "kici", ["docs"]) == 0
    assert "getting-started" in capsys.readouterr().out
    assert run(program, "kici", ["docs", "getting-started"]) == 0
    assert capsys.readouterr().out.startswith("# ")
    assert run(program, "kici", ["docs", "getting-strated"]) == 1
    assert "did you mean 'getting-started'" in capsys.readouterr().err
    assert run(program, "kici", ["docs", "--json"]) == 0
    assert "getting-started" in json.loads(capsys.readouterr().out)["topics"]


def test_running_remotely_says_that_it_is_not_there_yet(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(program, "kici", ["run", "remote", "--workflow", "ci"]) == 2
    assert "is not there yet" in capsys.readouterr().err
