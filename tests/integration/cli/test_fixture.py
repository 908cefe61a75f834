"""`kici fixture`, and its files as events of `preview` and `run local`; typed inputs of both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kici.cli.main import program
from kici.program import run

WORKFLOWS = """
import dataclasses
from kici import comment, job, kici_event, manual, schedule, workflow

@dataclasses.dataclass
class Inputs:
    count: int = 1

one = job("one", runs_on="linux", env={"N": "{input.count}"}, steps=["true"])
said = workflow("said", on=comment(actions="created", body_match="/deploy *"), jobs=[one])
built = workflow("built", on=kici_event("built", match={"$.ok": True}), jobs=[one])
nightly = workflow("nightly", on=[schedule("0 6 * * *", tz="Europe/Berlin"), schedule("0 18 * * *")], jobs=[one])
hand = workflow("hand", on=manual(inputs=Inputs), jobs=[one])
"""


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".kici/workflows").mkdir(parents=True)
    (tmp_path / ".kici/workflows/ci.py").write_text(WORKFLOWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def kici(*arguments: str) -> int:
    return run(program, "kici", list(arguments))


def test_a_fixture_is_a_whole_event_that_its_workflow_takes(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kici("fixture", "comment", "--workflow", "said", "--output", ".kici/events/deploy.json") == 0
    file = repository / ".kici/events/deploy.json"
    made = json.loads(file.read_text())
    assert (made["type"], made["action"], made["body"]) == ("comment", "created", "/deploy 1")
    assert kici("preview", "--event", "deploy.json") == 0
    assert "✓ said" in capsys.readouterr().out
    file.write_text(json.dumps({**made, "body": "hello"}))
    assert kici("preview", "--event", "deploy.json") == 0
    assert "✗ said" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--event", "comment", "--workflow", "said"], "✓ said: Matched trigger 1 (comment)"),
        (["--event", "kici_event", "--workflow", "built"], "✓ built: Matched trigger 1 (kici_event)"),
        (["--event", "kici_event:built"], "✗ built"),
        (["--event", "schedule", "--workflow", "nightly"], "✓ nightly: Matched trigger 1 (schedule)"),
        (["--event", "manual", "--workflow", "hand", "--input", "count=3"], "✓ hand: Matched trigger 1 (manual)"),
        (["--event", "manual", "--workflow", "hand", "--input", "count=x"], "fails: input 'count' is 'x'"),
    ],
)
def test_preview_takes_words_for_every_event(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kici("preview", *arguments) == 0
    assert line in capsys.readouterr().out


def test_what_is_no_event_is_refused_by_all_three(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["fixture", "comit"], ["preview", "--event", "comit"], ["run", "local", "--event", "comit"]):
        assert kici(*arguments) != 0
        assert "there is no event 'comit'" in capsys.readouterr().err
    assert kici("fixture", "push", "--workflow", "siad") == 1
    assert "did you mean 'said'" in capsys.readouterr().err


def test_a_local_run_refuses_inputs_that_its_trigger_does_not_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert kici("run", "local", "hand", "--input", "count=x") == 2
    assert "hand: input 'count' is 'x'; it is a whole number" in capsys.readouterr().err
    assert kici("run", "local", "hand", "--input", "cuont=1") == 2
    assert "there is no input 'cuont' (did you mean 'count'?)" in capsys.readouterr().err


def test_a_local_run_of_every_kind_of_trigger_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("said", "built", "nightly", "hand"):
        assert kici("run", "local", name, "--in-place", "--quiet") == 0, capsys.readouterr()
