from __future__ import annotations

import os
from pathlib import Path

import pytest

from kici.agent import workspace
from kici.agent.errors import SettingsInvalid
from kici.agent.workspace import Owner

OWNER = Owner(60_998, 60_998) if os.geteuid() == 0 else None


def test_directories_belong_to_the_slot_and_the_verified_code_to_the_agent(base: Path) -> None:
    with workspace.opened(base, 3, OWNER) as space:
        mine = OWNER.uid if OWNER else os.geteuid()
        for path in (space.root, space.src, space.tmp, space.home):
            assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (mine, 0o700)
        assert (space.kici.stat().st_uid, space.kici.stat().st_mode & 0o777) == (os.geteuid(), 0o755)
        assert space.root.parent == base / "slot-3"
    assert not space.root.exists()


async def test_what_a_killed_agent_has_left_is_removed_when_the_next_starts(base: Path) -> None:
    with workspace.claim(base / "work"):
        (base / "work/slot-0/job-1-0000").mkdir(parents=True)
    with workspace.claim(base / "work"):
        assert list((base / "work").glob("slot-*")) == []


def test_a_work_directory_is_used_by_one_agent(base: Path) -> None:
    with (
        workspace.claim(base / "work"),
        pytest.raises(SettingsInvalid, match="another agent"),
        workspace.claim(base / "work"),
    ):
        pass
    with workspace.claim(base / "work"):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_work_directory_of_somebody_else_is_refused(base: Path) -> None:
    (base / "work").mkdir()
    os.chown(base / "work", 60_998, 60_998)
    with pytest.raises(SettingsInvalid, match="belongs to another user"), workspace.claim(base / "work"):
        pass


def test_a_work_directory_that_cannot_be_used_stops_the_start_with_the_variable_to_set(base: Path) -> None:
    (base / "file").touch()
    with pytest.raises(SettingsInvalid, match="set KICI_WORK_DIR"), workspace.claim(base / "file" / "work"):
        pass


def test_the_next_job_of_a_slot_has_an_empty_home_and_temporary_directory(base: Path) -> None:
    with workspace.opened(base, 0, OWNER) as first:
        (first.home / ".netrc").write_text("secret")
        (first.tmp / "key").write_text("secret")
    with workspace.opened(base, 0, OWNER) as second:
        assert [*second.home.iterdir(), *second.tmp.iterdir(), *second.src.iterdir()] == []
