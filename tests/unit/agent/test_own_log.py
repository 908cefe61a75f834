from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from kici.agent import own_log
from kici.agent.settings import load


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Not to the library's own: that draws tracebacks with all locals, for seconds, in whatever test comes next."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("form", ["json", "plain"])
def test_neither_tokens_nor_local_variables_are_shown(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    own_log.configure(load({"KICI_ORCHESTRATOR_URL": "ws://host", "KICI_LOG_FORMAT": form}))
    token = "kat_" + "0" * 64
    try:
        password = "hunter2"
        raise ValueError(f"{token} was refused ({len(password)})")
    except ValueError:
        structlog.get_logger().exception("it failed", tokens=[{"of": token}])
    said = capsys.readouterr().err
    assert "it failed" in said
    assert "ValueError" in said
    assert "kat_***" in said
    assert token not in said
    assert "hunter2" not in said.replace('password = "hunter2"', "")


def test_what_is_below_the_level_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    own_log.configure(load({"KICI_ORCHESTRATOR_URL": "ws://host", "KICI_LOG_LEVEL": "warn"}))
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud")
    said = capsys.readouterr().err
    assert "quiet" not in said
    assert "loud" in said
