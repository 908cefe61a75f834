"""Four jobs at once on one agent: users, homes and temporary directories of their own, and what they share."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import msgspec
import pytest

from kici.agent.sandbox.choose import choose
from kici.agent.sandbox.slot_users import FIRST_UID
from kici.engine.events import Event, EventType
from kici.wire.agent import Checkout, Dispatch, JobRejected
from kici.wire.context import JobContext
from tests.support import agent_process
from tests.support.agent_orchestrator import Orchestrator
from tests.support.kici_repository import KiciRepository
from tests.support.web import Web

JOBS = [f"0f0f0f0f-0000-0000-0000-00000000000{number}" for number in range(1, 5)]
ONE_MORE = "0f0f0f0f-0000-0000-0000-00000000000f"
# Names of abstract sockets are the machine's, so that jobs can meet there. Each leaves when all have come to it.
MEET = """
import socket, time
names = [f"\\0kici-test-MARK-{number}" for number in range(4)]
mine = socket.socket(socket.AF_UNIX)
for name in names:
    try:
        mine.bind(name)
        break
    except OSError:
        continue
mine.listen(8)
deadline = time.monotonic() + 60
others = [socket.socket(socket.AF_UNIX) for name in names]
for name, other in zip(names, others):
    while other.connect_ex(name):
        assert time.monotonic() < deadline, "the others did not come"
        time.sleep(0.02)
come = [mine.accept() for name in names]
print("all four are here", flush=True)
"""
COMMANDS = (
    'echo "$KICI_JOB_ID" > /tmp/mine; echo "$KICI_JOB_ID" > "$HOME/mine"; mkdir /tmp/made-by-$KICI_JOB_ID',
    "PYTHON meet.py $KICI_JOB_ID",
    'cat /tmp/mine "$HOME/mine"; ls -d /tmp/made-by-*; echo "uid $(id -u)"',
    '(cat /proc/[0-9]*/environ 2>/dev/null || true) | tr "\\0" "\\n" | grep "^KICI_JOB_ID=" | sort -u',
)


def dispatch(web: Web, repository: KiciRepository, job_id: str) -> Dispatch:
    event = Event(EventType.PUSH, branch="main", sha=repository.sha, repo="me/repo")
    context = JobContext("run", job_id, 1, "ci", "build", "build", event)
    web.contexts[job_id] = msgspec.msgpack.encode(context)
    return Dispatch(
        *("run", job_id, 1, "ci", "build", "build"),
        checkout=Checkout(f"{web.url}/git/repo/.git", repository.sha, repository.sha),
        lock_sha256=repository.lock_sha256,
        job_token="kjt_" + "fedcba9876543210" * 4,
        context=context,
    )


@pytest.mark.skipif(choose("auto").sandbox.name != "bubblewrap", reason="bubblewrap does not work here")
async def test_four_jobs_run_at_once_and_each_has_only_what_is_its_own(
    base: Path, web: Web, orchestrator: Orchestrator
) -> None:
    commands = tuple(command.replace("PYTHON", "python3") for command in COMMANDS)
    repository = KiciRepository(web.repositories / "repo", {"build": commands})
    repository.write({"meet.py": MEET.replace("MARK", base.name)})
    repository.commit()
    async with agent_process.running(base, orchestrator.url, {"KICI_SANDBOX": "true", "KICI_AGENT_SLOTS": "4"}):
        for job_id in JOBS:
            await orchestrator.send(dispatch(web, repository, job_id))
        await orchestrator.send(dispatch(web, repository, ONE_MORE))
        assert (await orchestrator.body(JobRejected)).job_id == ONE_MORE
        ends = await asyncio.gather(*(orchestrator.end(job_id) for job_id in JOBS))
        assert [end.status for end in ends] == ["success"] * 4, [end.error for end in ends]
        uids = set()
        for job_id in JOBS:
            assert "all four are here" in await orchestrator.log(job_id, 1)
            *mine, uid = (await orchestrator.log(job_id, 2, "uid")).splitlines()
            assert mine == [job_id, job_id, f"/tmp/made-by-{job_id}"]
            uids.add(uid)
            assert (await orchestrator.log(job_id, 3)).splitlines() == [f"KICI_JOB_ID={job_id}"]
        if os.geteuid() == 0:
            assert uids == {f"uid {FIRST_UID + slot}" for slot in range(4)}


@pytest.mark.skipif(choose("auto").sandbox.name != "bubblewrap", reason="bubblewrap does not work here")
@pytest.mark.parametrize("network", ["isolated", "host"])
async def test_jobs_share_the_machines_network_unless_each_has_one_of_its_own(
    base: Path, web: Web, orchestrator: Orchestrator, network: str
) -> None:
    seen = "import socket; print('names', sorted(name for _, name in socket.if_nameindex()))"
    repository = KiciRepository(web.repositories / "repo", {"build": (f'python3 -c "{seen}"',)})
    env = {"KICI_SANDBOX": "true", "KICI_SANDBOX_NETWORK": network}
    async with agent_process.running(base, orchestrator.url, env):
        await orchestrator.send(dispatch(web, repository, JOBS[0]))
        assert (await orchestrator.end(JOBS[0])).status == "success"
        machine = sorted(name for _, name in socket.if_nameindex())
        expected = ["lo"] if network == "isolated" else machine
        assert (await orchestrator.log(JOBS[0], 0, "names")).strip() == f"names {expected}"


async def test_a_job_over_its_disk_is_killed_and_the_one_beside_it_and_the_agent_go_on(
    base: Path, web: Web, orchestrator: Orchestrator
) -> None:
    ends = base / "ends"
    # 64 MiB is the least that an operator may set. The other one waits until this one's end was told.
    command = (
        f'if [ "$KICI_JOB_ID" = {JOBS[0]} ]; then head -c 100M /dev/zero >big; sleep 1000; fi;'
        f" until [ -e {ends} ]; do sleep 0.05; done"
    )
    repository = KiciRepository(web.repositories / "repo", {"build": (command,)})
    env = {"KICI_AGENT_SLOTS": "2", "KICI_JOB_DISK": "64MiB"}
    async with agent_process.running(base, orchestrator.url, env) as agent:
        for job_id in JOBS[:2]:
            await orchestrator.send(dispatch(web, repository, job_id))
        over = await orchestrator.end(JOBS[0])
        assert (over.status, over.reason) == ("failed", "disk_full")
        assert "over its limit of 64 MiB (KICI_JOB_DISK, measured every " in over.error
        ends.touch()
        assert (await orchestrator.end(JOBS[1])).status == "success"
        await orchestrator.send(dispatch(web, repository, JOBS[2]))
        assert (await orchestrator.end(JOBS[2])).status == "success"
        assert agent.process.returncode is None
