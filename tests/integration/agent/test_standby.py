"""Places that stand ready: real runners, in no sandbox and in bubblewrap."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
import structlog

from kici.agent.sandbox.bubblewrap import Bubblewrap
from kici.agent.sandbox.contract import Sandbox
from kici.agent.sandbox.launch import runner_argv
from kici.agent.sandbox.none import NoSandbox
from kici.agent.settings import Settings
from kici.agent.standby import Place, Standby
from kici.runner.processes import descendants
from tests.support.services import running, until

RUNNER = "\0".join(runner_argv()).encode()


@pytest.fixture(params=["none", "bubblewrap"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return Bubblewrap() if request.param == "bubblewrap" else NoSandbox()


def settings(base: Path, slots: int = 1, *, standby: bool = True) -> Settings:
    (base / "work").mkdir(mode=0o711, exist_ok=True)
    return Settings(
        orchestrator_url="ws://host", agent_id="agent", work_dir=base / "work", agent_slots=slots, standby=standby
    )


def directories(base: Path) -> list[Path]:
    return list((base / "work").glob("slot-*/*"))


def runners() -> list[int]:
    """Of this process; neither the programs around them, whose arguments name them too, nor what is not one yet."""
    return [pid for pid in descendants(os.getpid()) if _command(pid).startswith(RUNNER)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def standing(base: Path, count: int = 1) -> list[int]:
    """Once as many runners wait as there are directories: what they are."""

    async def stand() -> bool:
        return len(directories(base)) == count and len(runners()) == count

    await until(stand)
    return runners()


async def ready(base: Path, standby: Standby) -> int:
    """Of the one slot, once its runner waits for a job."""
    (runner,) = await standing(base)
    place = standby._slots[0].place
    assert place
    async with asyncio.timeout(20):
        await place.ready()
    return runner


async def test_a_free_slot_has_a_place_that_one_job_gets_and_the_next_job_gets_another(
    base: Path, sandbox: Sandbox
) -> None:
    standby = Standby(settings(base), sandbox)
    async with running(standby):
        first = await standing(base)
        async with standby.take() as place:
            await place.ready()
            assert runners() == first
            assert [path for path in place.space.root.rglob("*") if path.is_file()] == []
            used = place.space.root
        second = await standing(base)
        assert second != first
        async with standby.take() as place:
            await place.ready()
            assert runners() == second
            assert place.space.root != used
            assert not used.exists()
    assert (runners(), directories(base)) == ([], [])


async def test_a_job_that_comes_at_once_gets_the_place_that_is_being_made(base: Path) -> None:
    standby = Standby(settings(base), NoSandbox())
    async with running(standby):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        (being_made,) = directories(base)
        async with standby.take() as place:
            assert place.space.root == being_made
            await place.ready()
            assert len(runners()) == 1


@pytest.mark.parametrize("ahead", [True, False])
async def test_a_job_gets_a_place_whether_or_not_one_stands_ready(base: Path, ahead: bool) -> None:
    """Before the service runs, and with `KICI_STANDBY=false`: nothing is made ahead, also not after the job."""
    standby = Standby(settings(base, standby=False), NoSandbox())
    async with AsyncExitStack() as stack:
        if ahead:
            await stack.enter_async_context(running(standby))
        for _ in range(2):
            async with standby.take() as place:
                await place.ready()
                assert len(runners()) == 1
            assert (runners(), directories(base)) == ([], [])


async def test_slots_are_never_shared_and_a_job_waits_for_one(base: Path) -> None:
    standby = Standby(settings(base, 2), NoSandbox())
    async with running(standby), AsyncExitStack() as stack:
        await standing(base, 2)
        one = await stack.enter_async_context(standby.take())
        async with standby.take() as two:
            third = asyncio.ensure_future(stack.enter_async_context(standby.take()))
            await asyncio.sleep(0)
            assert not third.done()
            assert {one.space.slot, two.space.slot} == {0, 1}
        assert (await third).space.slot == two.space.slot
        await (await third).ready()


async def test_a_runner_that_is_killed_while_it_waits_is_replaced_and_told(base: Path, sandbox: Sandbox) -> None:
    standby = Standby(settings(base), sandbox)
    with structlog.testing.capture_logs() as told:
        async with running(standby):
            (killed,) = await standing(base)
            os.kill(killed, signal.SIGKILL)

            async def replaced() -> bool:
                return killed not in runners() and len(runners()) == 1 and len(directories(base)) == 1

            await until(replaced)
            async with standby.take() as place:
                await place.ready()
                assert killed not in runners()
    (warning,) = (entry for entry in told if entry["log_level"] == "warning")
    assert (warning["event"], warning["slot"]) == ("a standby runner is gone", 0)
    assert "SIGKILL" in warning["reason"]


async def test_a_runner_that_is_stopped_while_it_waits_is_replaced_and_told(
    base: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kici.agent.execution.STANDBY_ASK_S", 0.05)
    monkeypatch.setattr("kici.agent.execution.STANDBY_SILENT_S", 0.3)
    standby = Standby(settings(base), sandbox)
    with structlog.testing.capture_logs() as told:
        async with running(standby):
            stopped = await ready(base, standby)
            os.kill(stopped, signal.SIGSTOP)

            async def replaced() -> bool:
                return stopped not in runners() and len(runners()) == 1

            await until(replaced)
    reasons = [entry["reason"] for entry in told if entry["event"] == "a standby runner is gone"]
    assert "the runner did not answer for 0.3 s while it stood ready (it is stopped)" in reasons


async def test_a_job_is_not_handed_to_a_runner_that_is_stopped(base: Path, sandbox: Sandbox) -> None:
    """Also before it was asked: it is looked at when the job comes."""
    standby = Standby(settings(base), sandbox)
    async with running(standby):
        stopped = await ready(base, standby)
        os.kill(stopped, signal.SIGSTOP)

        async def is_stopped() -> bool:
            return b"\nState:\tT" in Path(f"/proc/{stopped}/status").read_bytes()

        await until(is_stopped)
        async with standby.take() as place:
            await place.ready()
            assert stopped not in runners()
            assert len(runners()) == 1


async def test_a_place_whose_directory_was_tidied_away_is_not_handed_over(base: Path) -> None:
    standby = Standby(settings(base), NoSandbox())
    async with running(standby):
        (old,) = await standing(base)
        (directory,) = directories(base)
        (directory / "tmp").rmdir()
        async with standby.take() as place:
            await place.ready()
            assert place.space.root != directory
            assert old not in runners()
            assert place.space.tmp.is_dir()


async def test_places_that_cannot_be_made_are_tried_again_and_told(base: Path) -> None:
    standby = Standby(settings(base), NoSandbox())
    (base / "work" / "slot-0").write_text("in the way")
    with structlog.testing.capture_logs() as told:
        async with running(standby):

            async def tried_twice() -> bool:
                return [entry["event"] for entry in told].count("a standby runner is gone") >= 2

            await until(tried_twice)
            (base / "work" / "slot-0").unlink()
            await standing(base)


async def test_a_draining_agent_leaves_none_and_makes_none(base: Path, sandbox: Sandbox) -> None:
    standby = Standby(settings(base, 2), sandbox)
    async with running(standby):
        await standing(base, 2)
        async with standby.take() as place:
            standby.retire()

            async def only_the_job_s() -> bool:
                return directories(base) == [place.space.root]

            await until(only_the_job_s)
            await place.ready()
        assert (runners(), directories(base)) == ([], [])
        async with standby.take() as place:  # accepted before the drain, had to wait
            await place.ready()
    assert (runners(), directories(base)) == ([], [])


async def test_a_job_that_is_given_up_while_its_runner_starts_leaves_nothing(base: Path, sandbox: Sandbox) -> None:
    standby = Standby(settings(base, standby=False), sandbox)
    async with running(standby):
        for turns in (0, 1, 2, 5):
            async with standby.take() as place:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await place.vacate()
                assert runners() == []
            assert directories(base) == []


async def test_closing_a_place_ends_whoever_waits_for_it(base: Path) -> None:
    place = Place(settings(base), NoSandbox(), 0)
    await place.ready()
    lost = asyncio.create_task(place.lost())
    await asyncio.gather(place.close(), place.close())
    async with asyncio.timeout(20):
        assert "SIGKILL" in await lost
    assert not place.is_whole


async def test_a_place_that_is_made_again_for_another_sandbox_keeps_all_its_limits(tmp_path: Path) -> None:
    wanted = msgspec.structs.replace(settings(tmp_path), job_disk=8 * 1024**2)
    place = Place(wanted, NoSandbox(), 0)
    async with asyncio.timeout(30):
        try:
            await place.ready()
            first = place.execution
            await place.remake(NoSandbox())
            assert place.execution is not first
            assert (place.execution._spec, place.execution._disk_bytes) == (first._spec, 8 * 1024**2)
        finally:
            await place.close()
