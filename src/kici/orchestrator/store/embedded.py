"""PostgreSQL for people who have none: a real server below the data directory, started by us.

No TCP, SCRAM passwords, a socket that only its owner reaches, and every durability setting on. A server outlives a
crashed orchestrator and is adopted by the next one. Several processes may use one directory; the last to leave
stops the server.

Layout of the directory: `data/` (PostgreSQL's own), `run/` (the socket), `bin/` (binaries, where the installed ones
cannot be reached by the server's user), `password`, `server.log`, and two lock files.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

import asyncpg
import structlog

from kici.orchestrator.errors import OrchestratorError
from kici.orchestrator.store import postgres_binaries, postgres_owner, postmaster
from kici.orchestrator.store.postgres_binaries import Binaries
from kici.orchestrator.store.postgres_owner import Owner
from kici.orchestrator.store.postmaster import Postmaster

log = structlog.get_logger(__name__)

NAME = "kici"
"""Of the superuser and of the database."""
SOCKET_PATH_BYTES = 107
LOG_BYTES = 16 * 1024 * 1024

SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "password_encryption": "scram-sha-256",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "max_connections": "100",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "cluster_name": NAME,
}


class EmbeddedPostgresError(OrchestratorError):
    code = "embedded_postgres"


class EmbeddedPostgres:
    """`start` it, run its supervision as a service, `stop` it last."""

    def __init__(
        self,
        root: Path,
        *,
        settings: dict[str, str] | None = None,
        sync_init: bool = True,
        binaries: Binaries | None = None,
        patience_s: float = 60.0,
    ) -> None:
        """`settings` and `sync_init` are for test servers, which may trade durability for speed.

        `patience_s` bounds one start, recovery after a crash included.
        """
        self._root = root.absolute()
        self._data = self._root / "data"
        self._settings = SETTINGS | (settings or {})
        self._sync_init = sync_init
        self._binaries = binaries
        self._patience = patience_s
        self._server: Postmaster | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._in_use: int | None = None
        self.url = ""
        """Set by `start`; holds the password."""
        self.starts = 0
        """How often this object has started a server; adoption does not count."""

    async def start(self) -> str:
        """Start the server, or adopt the one that already runs here. Answers the database's URL."""
        self._prepare()
        async with asyncio.timeout(self._patience), self._exclusive():
            await self._ensure()
            if self._in_use is None:
                self._in_use = os.open(self._root / "in-use.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._in_use, fcntl.LOCK_SH)
        return self.url

    async def run(self) -> None:
        """Watch the server until cancelled; start it again whenever it ends."""
        pause = 0.05
        while True:
            assert self._server is not None, "start() comes first"
            await self._server.ended()
            log.error("the embedded PostgreSQL server has ended: starting it again", pid=self._server.pid)
            while True:
                try:
                    await self.start()
                except (EmbeddedPostgresError, TimeoutError) as error:
                    log.error("the embedded PostgreSQL server did not start", error=str(error), retry_in_s=pause)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 5.0)
                else:
                    pause = 0.05
                    break

    async def stop(self) -> None:
        """Stop the server unless another process still uses it. Fast, clean, and safe to repeat."""
        if self._server is None:
            return
        async with self._exclusive():
            if not self._release():
                log.info("another process uses the embedded PostgreSQL server: it goes on")
            else:
                await self._end(self._server)
            self._forget()

    # -- starting

    def _prepare(self) -> None:
        root_mode = 0o711 if os.geteuid() == 0 else 0o700  # the server's user must pass through a directory of root's
        self._root.mkdir(mode=root_mode, parents=True, exist_ok=True)
        if self._binaries is None:
            self._binaries = postgres_binaries.find()

    async def _ensure(self) -> None:
        assert self._binaries is not None
        deadline = time.monotonic() + self._patience
        self._forget()
        while (running := postmaster.find(self._data)) is not None:
            noted = postmaster.read_pid_file(self._data)
            if noted is not None and noted.status in {"ready", "starting", "standby"} and noted.socket_dir:
                await self._adopt(running, noted.socket_dir)
                return
            running.close()
            await asyncio.sleep(0.02)  # stopping, or about to write its pid file
        owner = postgres_owner.choose(self._data)
        binaries = self._usable(self._binaries, owner)
        self._check_version(binaries)
        if not (self._data / "PG_VERSION").exists():
            await self._init(binaries, owner)
        socket_dir = self._socket_dir(owner)
        while True:
            self._remove_stale_pid_file()
            self._spawn(binaries, owner, socket_dir)
            if await self._came_up():
                break
            if time.monotonic() > deadline or not self._worth_another_try():
                raise EmbeddedPostgresError(
                    f"PostgreSQL ended while it started: {self._last_words()} (see {self._root / 'server.log'})"
                )
            await asyncio.sleep(0.1)
        await self._connectable(socket_dir)
        self.starts += 1
        assert self._server is not None
        log.info("started PostgreSQL", version=binaries.version, pid=self._server.pid, user=owner.name)

    async def _adopt(self, running: Postmaster, socket_dir: str) -> None:
        self._server = running
        await self._connectable(Path(socket_dir))
        log.info("adopted the PostgreSQL server that already runs here", pid=running.pid)

    def _usable(self, binaries: Binaries, owner: Owner) -> Binaries:
        """The binaries as `owner` can reach them."""
        barrier = owner.barrier(self._data)
        if barrier is not None:
            raise EmbeddedPostgresError(
                f"user {owner.name}, who runs PostgreSQL, cannot pass {barrier}: choose another KICI_DATA_DIR,"
                f" or allow it with `chmod o+x {barrier}`"
            )
        if owner.barrier(binaries.postgres) is None:
            return binaries
        folder = self._root / "bin"
        folder.mkdir(mode=0o755, exist_ok=True)
        return postgres_binaries.copied(binaries, folder)

    def _check_version(self, binaries: Binaries) -> None:
        try:
            made_by = int((self._data / "PG_VERSION").read_text().split(".")[0])
        except FileNotFoundError:
            return
        if made_by != binaries.major:
            raise EmbeddedPostgresError(
                f"the database in {self._data} was made by PostgreSQL {made_by}, but the server at hand is PostgreSQL"
                f" {binaries.major}: dump it with the old version and restore it with the new one (pg_dump, psql),"
                f" or start with an empty KICI_DATA_DIR"
            )

    async def _init(self, binaries: Binaries, owner: Owner) -> None:
        """Make the data directory whole or not at all."""
        unfinished = self._root / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        os.chown(unfinished, owner.uid, owner.gid)
        password = secrets.token_hex(32)
        with tempfile.NamedTemporaryFile(dir=self._root, prefix="initdb-") as handed:
            handed.write(password.encode())
            handed.flush()
            os.fchown(handed.fileno(), owner.uid, owner.gid)
            command = [str(binaries.initdb), "-D", str(unfinished), "-U", NAME, "-A", "scram-sha-256"]
            command += [f"--pwfile={handed.name}", "-E", "UTF8", "--locale=C", "--data-checksums", "--no-instructions"]
            if not self._sync_init:
                command.append("--no-sync")
            elif binaries.major >= 17:
                command.append("--sync-method=syncfs")
            with tempfile.TemporaryFile() as output:
                process = owner.start(command, output)
                try:
                    status = await postmaster.finished(process)
                finally:
                    process.kill()
                    process.wait()
                output.seek(0)
                said = output.read().decode(errors="replace").strip()
        if status != 0:
            raise EmbeddedPostgresError(f"initdb failed: {said[-500:]}")
        self._write_password(password)
        unfinished.rename(self._data)

    def _write_password(self, password: str) -> None:
        path = self._root / "password"
        new = path.with_suffix(".new")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(password)
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)

    def _socket_dir(self, owner: Owner) -> Path:
        """A private directory whose path fits into a socket address: below ours, else below the temporary one."""
        path = self._root / "run"
        if len(os.fsencode(path / postmaster.SOCKET_NAME)) > SOCKET_PATH_BYTES:
            digest = sha256(os.fsencode(self._root)).hexdigest()[:16]
            path = Path(tempfile.gettempdir()) / f"kici-postgres-{digest}"
        try:
            path.mkdir(mode=0o700)
            os.chown(path, owner.uid, owner.gid)
        except FileExistsError:
            found = path.lstat()
            if found.st_uid != owner.uid or found.st_mode & 0o170077 != 0o040000:
                raise EmbeddedPostgresError(
                    f"{path} is not a private directory of user {owner.name}: remove it, it is to hold"
                    " PostgreSQL's socket"
                ) from None
        return path

    def _remove_stale_pid_file(self) -> None:
        """PostgreSQL refuses to start beside a pid file whose pid lives, whoever that is. We know it is not its own."""
        server = postmaster.find(self._data)
        if server is not None:
            server.close()
            return
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def _spawn(self, binaries: Binaries, owner: Owner, socket_dir: Path) -> None:
        command = [str(binaries.postgres), "-D", str(self._data)]
        for name, value in (self._settings | {"unix_socket_directories": str(socket_dir)}).items():
            command += ["-c", f"{name}={value}"]
        log_path = self._root / "server.log"
        if log_path.exists() and log_path.stat().st_size > LOG_BYTES:
            log_path.replace(log_path.with_suffix(".log.old"))
        with open(log_path, "ab", opener=_private) as output:
            self._child = owner.start(command, output)

    async def _came_up(self) -> bool:
        assert self._child is not None
        while self._child.poll() is None:
            noted = postmaster.read_pid_file(self._data)
            if noted is not None and noted.pid == self._child.pid and noted.status == "ready":
                self._server = postmaster.verified(self._child.pid, self._data)
                return self._server is not None
            await asyncio.sleep(0.005)
        return False

    def _worth_another_try(self) -> bool:
        """Backends of a killed server hold its shared memory for a moment longer."""
        said = self._last_words()
        return "shared memory" in said or "lock file" in said

    def _last_words(self) -> str:
        lines = (self._root / "server.log").read_bytes()[-4000:].decode(errors="replace").splitlines()
        fatal = [line for line in lines if "FATAL" in line or "PANIC" in line or "could not" in line]
        return (fatal or lines or ["nothing was said"])[-1]

    async def _connectable(self, socket_dir: Path) -> None:
        """Wait until the server lets us in, and make our database if it is not there."""
        password = (self._root / "password").read_text()
        base = f"postgresql://{NAME}:{password}@/{{}}?host={quote(str(socket_dir), safe='')}&port=5432"
        while True:
            try:
                connection = await asyncpg.connect(base.format(NAME), timeout=5)
            except asyncpg.InvalidCatalogNameError:
                connection = await asyncpg.connect(base.format("postgres"), timeout=5)
                await connection.execute(f"create database {NAME}")
            except asyncpg.InvalidPasswordError as error:
                raise EmbeddedPostgresError(
                    f"the PostgreSQL server of {self._data} does not accept the password in {self._root / 'password'}"
                ) from error
            except (asyncpg.CannotConnectNowError, ConnectionError, FileNotFoundError):
                await asyncio.sleep(0.02)
                continue
            await connection.close()
            self.url = base.format(NAME)
            return

    # -- stopping

    async def _end(self, server: Postmaster) -> None:
        for number, patience in ((signal.SIGINT, 20), (signal.SIGQUIT, 10), (signal.SIGKILL, 5)):
            server.send(number)
            try:
                async with asyncio.timeout(patience):
                    await server.ended()
            except TimeoutError:
                log.warning("PostgreSQL does not stop", signal=number.name, pid=server.pid)
            else:
                return

    def _release(self) -> bool:
        """Give up our use of the server; True if nobody else uses it."""
        if self._in_use is None:
            return True
        try:
            fcntl.flock(self._in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        finally:
            os.close(self._in_use)
            self._in_use = None

    def _forget(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._child is not None:
            self._child.poll()
            self._child = None

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        """One process at a time starts or stops the server of this directory."""
        descriptor = os.open(self._root / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(0.02)
            yield
        finally:
            os.close(descriptor)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
