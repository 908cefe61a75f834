"""PostgreSQL for people who have none: a real server below the data directory, started by us.

No TCP, SCRAM passwords, a socket that only its owner reaches, and every durability setting on. A server outlives a
crashed orchestrator and is adopted by the next one. Several processes may use one directory; the last to leave
stops the server.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import structlog

from kici.orchestrator.store.postgres import binaries, postmaster
from kici.orchestrator.store.postgres.binaries import Binaries
from kici.orchestrator.store.postgres.cluster import Cluster
from kici.orchestrator.store.postgres.errors import EmbeddedPostgresError
from kici.orchestrator.store.postgres.postmaster import Postmaster

log = structlog.get_logger(__name__)

DATABASE = "kici"
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
    "cluster_name": "kici",
}


class EmbeddedPostgres:
    """`start` it, run its supervision as a service, `stop` it last."""

    def __init__(
        self,
        root: Path,
        *,
        settings: dict[str, str] | None = None,
        sync_init: bool = True,
        found: Binaries | None = None,
        patience_s: float = 60.0,
    ) -> None:
        """`settings` and `sync_init` are for test servers, which may trade durability for speed.

        `found`: other binaries than the ones that are found. `patience_s` bounds the first start.
        """
        self._root = root.absolute()
        self._settings = SETTINGS | (settings or {})
        self._sync_init = sync_init
        self._found = found
        self._patience = patience_s
        self._server: Postmaster | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._in_use: int | None = None
        self.url = ""
        """Set by `start`; holds the password."""
        self.starts = 0
        """How often this object has started a server; adoption does not count."""

    @property
    def pid(self) -> int | None:
        """Of the server, while there is one."""
        return None if self._server is None else self._server.pid

    async def start(self) -> str:
        """Start the server, or adopt the one that already runs here. Answers the database's URL.

        Raises `EmbeddedPostgresError` with a sentence for the operator.
        """
        try:
            async with asyncio.timeout(self._patience):
                await self._start()
        except TimeoutError as error:
            raise EmbeddedPostgresError(
                f"PostgreSQL in {self._root} was not ready in {self._patience:g} s: see {self._root / 'server.log'},"
                " and whether another server (in another container?) uses this directory"
            ) from error
        return self.url

    async def run(self) -> None:
        """Watch the server until cancelled; start it again whenever it ends, however long its recovery takes."""
        pause = 0.05
        while True:
            if self._server is not None:
                await self._server.ended()
                log.error("the embedded PostgreSQL server has ended: starting it again", pid=self._server.pid)
            try:
                await self._start()
            except EmbeddedPostgresError as error:
                log.error("the embedded PostgreSQL server did not start", error=str(error), retry_in_s=pause)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 5.0)
            else:
                pause = 0.05

    async def stop(self) -> None:
        """Stop the server unless another process still uses it. Fast, clean, and safe to repeat."""
        if self._server is None:
            self._last_user()
            return
        async with self._exclusive():
            if self._last_user():
                await _end(self._server)
            else:
                log.info("another process uses the embedded PostgreSQL server: it goes on", pid=self.pid)
                if self._child is not None:
                    self._child.returncode = 0  # given away: whoever stops the server waits for it
            self._forget()

    async def _start(self) -> None:
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._root.stat().st_uid == os.geteuid():
                self._root.chmod(0o711 if os.geteuid() == 0 else 0o700)  # root's server runs as somebody else
            async with self._exclusive():
                try:
                    await self._ensure()
                except BaseException:
                    self._abandon()
                    raise
                if self._in_use is None:
                    self._in_use = _locked(self._root / "in-use.lock", fcntl.LOCK_SH)
        except PermissionError as error:
            raise EmbeddedPostgresError(
                f"{error.filename or self._root} belongs to another user: run kici as that user, or choose another"
                " KICI_DATA_DIR"
            ) from error

    async def _ensure(self) -> None:
        """Adopt, else make and start. Between the two, a server that is about to stop is waited for."""
        self._forget()
        data = self._root / "data"
        cluster: Cluster | None = None
        while True:
            noted = postmaster.read_pid_file(data)
            running = None if noted is None else postmaster.verified(noted.pid, data)
            if noted is None or running is None:
                if cluster is None:
                    cluster = Cluster(self._root, self._found or binaries.find(), self._settings)
                    await cluster.make(sync=self._sync_init)
                await self._launch(cluster)
                if self._server is not None:
                    return
            elif noted.status in {"starting", "ready"}:
                self._server = running
                cluster = cluster or Cluster(self._root, self._found or binaries.find(), self._settings)
                if await self._open(cluster, running, noted.socket_dir):
                    log.info("adopted the PostgreSQL server that already runs here", pid=running.pid)
                    return
                self._forget()
            else:
                running.close()
            await asyncio.sleep(0.02)

    async def _launch(self, cluster: Cluster) -> None:
        """Start a server and wait until it can be used. Nothing happens while an earlier one still ends."""
        self._child = cluster.spawn()
        if self._child is None:
            return
        while self._child.poll() is None:
            noted = postmaster.read_pid_file(cluster.data)
            if noted is not None and noted.pid == self._child.pid and noted.status == "ready":
                self._server = postmaster.verified(noted.pid, cluster.data)
                if self._server is not None and await self._open(cluster, self._server, noted.socket_dir):
                    self.starts += 1
                    version, user = cluster.binaries.version, cluster.owner.name
                    log.info("started PostgreSQL", version=version, pid=noted.pid, user=user)
                    return
            await asyncio.sleep(0.005)
        raise EmbeddedPostgresError(
            f"PostgreSQL ended while it started: {cluster.last_words()} (see {self._root / 'server.log'})"
        )

    async def _open(self, cluster: Cluster, server: Postmaster, socket_dir: str) -> bool:
        """Wait until the server lets us in, and make our database if it is not there. False if it ends instead."""
        url = cluster.url(DATABASE, socket_dir)
        while server.alive():
            try:
                connection = await asyncpg.connect(url, timeout=5)
            except asyncpg.InvalidCatalogNameError:
                await _create_database(cluster.url("postgres", socket_dir))
            except asyncpg.InvalidPasswordError as error:
                raise EmbeddedPostgresError(
                    f"the PostgreSQL server of {cluster.data} refuses the password in {self._root / 'password'}"
                ) from error
            except (asyncpg.CannotConnectNowError, asyncpg.PostgresConnectionError, OSError):
                await asyncio.sleep(0.02)  # still starting, or already ending
            else:
                await connection.close()
                self.url = url
                return True
        return False

    def _last_user(self) -> bool:
        """Give up our use of the server; True if nobody else uses it."""
        if self._in_use is None:
            return True
        try:
            fcntl.flock(self._in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            return True
        finally:
            os.close(self._in_use)
            self._in_use = None

    def _abandon(self) -> None:
        """After a start that failed or was cancelled: the server that was being started is to end."""
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(signal.SIGINT)
            self._child.returncode = 0  # it ends by itself, before anybody else may start one here
        self._forget()

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
        while True:
            try:
                descriptor = _locked(self._root / "start.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.02)
        try:
            yield
        finally:
            os.close(descriptor)


async def _create_database(url: str) -> None:
    connection = await asyncpg.connect(url, timeout=5)
    try:
        await connection.execute(f"create database {DATABASE}")
    finally:
        await connection.close()


async def _end(server: Postmaster) -> None:
    """Fast shutdown; harsher where that does not help. A killed server recovers at its next start."""
    for number, patience in ((signal.SIGINT, 20), (signal.SIGQUIT, 10), (signal.SIGKILL, 5)):
        server.send(number)
        try:
            async with asyncio.timeout(patience):
                await server.ended()
        except TimeoutError:
            log.warning("PostgreSQL does not stop", signal=number.name, pid=server.pid)
        else:
            return


def _locked(path: Path, how: int) -> int:
    """An open descriptor that holds the lock. Raises `BlockingIOError` where `how` says not to wait."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, how)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
