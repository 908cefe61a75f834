from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kici.agent import own_id
from kici.agent.errors import SettingsInvalid
from tests.support import agent_process
from tests.support.agent_orchestrator import Orchestrator


async def test_an_agent_without_an_id_has_the_same_one_after_a_restart(base: Path, orchestrator: Orchestrator) -> None:
    for start in range(2):
        async with agent_process.running(base, orchestrator.url, {"KICI_AGENT_ID": ""}):
            await orchestrator.until(lambda: orchestrator.hellos[start:], "a hello")  # noqa: B023 - awaited here
    first, second = (hello.agent_id for hello in orchestrator.hellos)
    assert first == second
    assert first.startswith(f"{socket.gethostname()}-")


def test_what_is_no_id_of_this_machine_is_replaced_and_a_link_is_not_followed(base: Path) -> None:
    (base / own_id.NAME).write_text("other-host-01234567\n")
    made = own_id.kept(base)
    assert made.startswith(socket.gethostname())
    assert own_id.kept(base) == made
    (base / own_id.NAME).unlink()
    (base / own_id.NAME).symlink_to("/etc/passwd")
    with pytest.raises(SettingsInvalid, match="KICI_AGENT_ID"):
        own_id.kept(base)
