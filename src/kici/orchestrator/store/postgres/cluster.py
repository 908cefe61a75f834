"""One data directory of PostgreSQL: made whole or not at all, checked, and served by a process that we start.

Layout below the root: `data/` (PostgreSQL's own), `run/` (the socket), `bin/` (binaries, where the installed ones
cannot be reached by the server's user), `password`, `server.log`, `server.lock`.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from kici.orchestrator.store.postgres import binaries, owner, postmaster
from kici.orchestrator.store.postgres.binaries import Binaries
from kici.orchestrator.store.postgres.errors import EmbeddedPostgresError

SUPERUSER = "kici"
SOCKET_PATH_BYTES = 107
LOG_BYTES = 16 * 1024 * 1024


class Cluster:
    """The directory `root`, for a server with these `settings` on its command line."""

    def __init__(self, root: Path, found: Binaries, settings: Mapping[str, str]) -> None:
        self.root = root
        self.data = root / "data"
        self._settings = settings
        self.owner = owner.choose(self.data)
        self.binaries = self._usable(found)
        self._check_version()

    async def make(self, *, sync: bool) -> None:
        """initdb, unless the directory exists. Not `sync`: quicker, and lost with the machine."""
        if self.data.exists():
            return
        unfinished = self.root / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        os.chown(unfinished, self.owner.uid, self.owner.gid)
        password = secrets.token_hex(32)
        with tempfile.NamedTemporaryFile(dir=self.root, prefix="initdb-") as handed, tempfile.TemporaryFile() as output:
            handed.write(password.encode())
            handed.flush()
            os.fchown(handed.fileno(), self.owner.uid, self.owner.gid)
            command = [str(self.binaries.folder / "initdb"), "-D", str(unfinished), "-U", SUPERUSER]
            command += ["-A", "scram-sha-256", f"--pwfile={handed.name}", "-E", "UTF8", "--locale=C", "-k"]
            if not sync:
                command.append("--no-sync")
            process = self.owner.start(command, output)
            try:
                status = await postmaster.finished(process)
            finally:
                process.kill()
                process.wait()
            output.seek(0)
            said = output.read().decode(errors="replace").strip()
        if status != 0:
            raise EmbeddedPostgresError(f"initdb failed: {said[-500:]}")
        self._keep(password)
        unfinished.rename(self.data)

    def spawn(self) -> subprocess.Popen[bytes] | None:
        """Start the server. None while processes of an earlier one still work in this directory.

        PostgreSQL tells by a pid, which means nothing to a server in another container. Ours inherits a lock besides,
        which is held until the last of its processes has ended, wherever they run.
        """
        lock = os.open(self.root / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Refused beside a pid file whose pid lives, whoever that is. Under the lock we know that nobody serves.
            (self.data / "postmaster.pid").unlink(missing_ok=True)
            command = [str(self.binaries.folder / "postgres"), "-D", str(self.data)]
            for name, value in {**self._settings, "unix_socket_directories": str(self._socket_dir())}.items():
                command += ["-c", f"{name}={value}"]
            with open(self._fresh_log(), "ab", opener=_private) as output:
                return self.owner.start(command, output, inherits=[lock])
        except BlockingIOError:
            return None
        finally:
            os.close(lock)

    def url(self, database: str, socket_dir: str) -> str:
        """Holds the password."""
        password = (self.root / "password").read_text()
        return f"postgresql://{SUPERUSER}:{password}@/{database}?host={quote(socket_dir, safe='')}&port=5432"

    def last_words(self) -> str:
        """The line of the server's log that most likely says why it ended."""
        lines = (self.root / "server.log").read_bytes()[-4000:].decode(errors="replace").splitlines()
        fatal = [line for line in lines if "FATAL" in line or "PANIC" in line or "could not" in line]
        return (fatal or lines or ["nothing was said"])[-1]

    def _usable(self, found: Binaries) -> Binaries:
        """The binaries as the owner can reach them."""
        barrier = self.owner.barrier(self.data)
        if barrier is not None:
            raise EmbeddedPostgresError(
                f"user {self.owner.name}, who runs PostgreSQL, cannot pass {barrier}: choose another KICI_DATA_DIR,"
                f" or allow it with `chmod o+x {barrier}`"
            )
        barrier = self.owner.barrier(found.folder / "postgres")
        if barrier is None:
            return found
        if not found.relocatable:
            raise EmbeddedPostgresError(f"user {self.owner.name}, who runs PostgreSQL, cannot pass {barrier}")
        folder = self.root / "bin"
        folder.mkdir(mode=0o755, exist_ok=True)
        return binaries.copied(found, folder)

    def _check_version(self) -> None:
        try:
            made_by = int((self.data / "PG_VERSION").read_text().split(".")[0])
        except FileNotFoundError:
            return
        if made_by != self.binaries.major:
            raise EmbeddedPostgresError(
                f"the database in {self.data} was made by PostgreSQL {made_by}, but the server at hand is PostgreSQL"
                f" {self.binaries.major}: dump it with the old version and restore it with the new one (pg_dump, psql),"
                " or start with an empty KICI_DATA_DIR"
            )

    def _keep(self, password: str) -> None:
        path = self.root / "password"
        new = path.with_suffix(".new")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(password)
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)

    def _socket_dir(self) -> Path:
        """A private directory whose path fits into a socket address: below ours, else below the temporary one."""
        path = self.root / "run"
        if len(os.fsencode(path / postmaster.SOCKET_NAME)) > SOCKET_PATH_BYTES:
            digest = sha256(os.fsencode(self.root)).hexdigest()[:16]
            path = Path(tempfile.gettempdir()) / f"kici-postgres-{digest}"
        try:
            path.mkdir(mode=0o700)
            os.chown(path, self.owner.uid, self.owner.gid)
        except FileExistsError:
            found = path.lstat()
            if found.st_uid != self.owner.uid or found.st_mode & 0o170077 != 0o040000:
                raise EmbeddedPostgresError(
                    f"{path} is to hold PostgreSQL's socket, but is not a private directory of user {self.owner.name}:"
                    " remove it"
                ) from None
        return path

    def _fresh_log(self) -> Path:
        path = self.root / "server.log"
        if path.exists() and path.stat().st_size > LOG_BYTES:
            path.replace(path.with_suffix(".log.old"))
        return path


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
