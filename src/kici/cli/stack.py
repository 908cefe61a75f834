"""`kici up`'s process tree: one orchestrator and one agent, given what they need and started again when they die.

The listening socket is made here and handed down, so that the address is known before anything runs, and a restarted
orchestrator finds the connections that came meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

from msgspec import Struct

from kici.errors import KiciError

READY_S = 60.0
AGENT_STOP_S = 20.0
"""The agent lets jobs run for 10 s when it is told to stop, then cancels and reports them."""
SERVER_STOP_S = 20.0
FIRST_RESTART_S = 0.2
LAST_RESTART_S = 10.0


class StackError(KiciError):
    code = "up_failed"


class Plan(Struct, frozen=True, kw_only=True):
    data_dir: Path
    port: int
    """0 = any free port."""
    repository: str
    slots: int = 1
    agent: bool = True


class Program(Struct):
    """One child that must run."""

    name: str
    argv: list[str]
    env: dict[str, str]
    fds: tuple[int, ...] = ()
    process: asyncio.subprocess.Process | None = None
    starts: int = 0


class Stack:
    """Use as `async with`: the parts are ready inside, and stopped in order after it."""

    def __init__(self, plan: Plan, *, say: Callable[[str], None]) -> None:
        self.plan = plan
        self._say = say
        self._listener: socket.socket | None = None
        self._claim: IO[bytes] | None = None
        self._programs: list[Program] = []
        self._watchers: list[asyncio.Task[None]] = []
        self._stopping = False

    @property
    def url(self) -> str:
        assert self._listener is not None
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def remote(self) -> Path:
        return self.plan.data_dir / "repositories" / f"{self.plan.repository}.git"

    @property
    def log_dir(self) -> Path:
        return self.plan.data_dir / "logs"

    async def __aenter__(self) -> Stack:
        # Other users may pass through to what is theirs (the database's own user), but not list what is here.
        self.plan.data_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.log_dir.mkdir(mode=0o700, exist_ok=True)
        self._claim = claim(self.plan.data_dir)
        self._listener = listen(self.plan.port)
        try:
            for program in self._describe():
                await self._start(program)
                self._programs.append(program)
                self._watchers.append(asyncio.create_task(self._watch(program)))
            await self._ready()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def run(self) -> None:
        """Until cancelled: children that die are started again."""
        await asyncio.gather(*self._watchers)

    def admin_token(self) -> str:
        return secret_file(self.plan.data_dir / "admin.token", lambda: secrets.token_hex(32)).read_text().strip()

    def _describe(self) -> list[Program]:
        assert self._listener is not None
        data = self.plan.data_dir
        self.admin_token()
        server = os.environ | {
            "KICI_DATA_DIR": str(data),
            "KICI_LISTEN_FD": str(self._listener.fileno()),
            "KICI_PUBLIC_URL": self.url,
            "KICI_SECRET_KEY_FILE": str(secret_file(data / "master.key", lambda: secrets.token_hex(32))),
            "KICI_BOOTSTRAP_ADMIN_TOKEN_FILE": str(data / "admin.token"),
            "KICI_BOOTSTRAP_AGENT_TOKEN_FILE": str(
                secret_file(data / "agent.token", lambda: f"kat_{secrets.token_hex(32)}")
            ),
            "KICI_LOCAL_REPOSITORY": self.plan.repository,
            "KICI_DIE_WITH_PARENT": "1",
        }
        agent = {name: value for name, value in os.environ.items() if not _is_server_secret(name)} | {
            "KICI_ORCHESTRATOR_URL": f"{self.url.replace('http', 'ws', 1)}/ws",
            "KICI_AGENT_TOKEN_FILE": str(data / "agent.token"),
            "KICI_AGENT_ID": os.environ.get("KICI_AGENT_ID", f"local-{socket.gethostname()}"),
            "KICI_AGENT_SLOTS": str(self.plan.slots),
            "KICI_WORK_DIR": str(data / "agent"),
            "KICI_DIE_WITH_PARENT": "1",
        }
        programs = [
            Program(
                "orchestrator",
                [sys.executable, "-m", "kici.orchestrator.main"],
                server,
                fds=(self._listener.fileno(),),
            )
        ]
        if self.plan.agent:
            programs.append(Program("agent", [sys.executable, "-m", "kici.agent.main"], agent))
        return programs

    async def _start(self, program: Program) -> None:
        with (self.log_dir / f"{program.name}.log").open("ab") as log:
            program.process = await asyncio.create_subprocess_exec(
                *program.argv,
                env=program.env,
                pass_fds=program.fds,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C at the terminal reaches this process only, which stops its children in order.
                start_new_session=True,
            )
        program.starts += 1

    async def _watch(self, program: Program) -> None:
        pause = FIRST_RESTART_S
        while True:
            assert program.process is not None
            started = asyncio.get_running_loop().time()
            code = await program.process.wait()
            if self._stopping:
                return
            if asyncio.get_running_loop().time() - started > LAST_RESTART_S:
                pause = FIRST_RESTART_S
            self._say(f"the {program.name} {how_it_ended(code)}; starting it again (its log: {self._log(program)})")
            await asyncio.sleep(pause)
            if self._stopping:
                return
            pause = min(pause * 2, LAST_RESTART_S)
            await self._start(program)

    async def _ready(self) -> None:
        """Wait until the orchestrator answers `/ready`; a child that ends before is an error with its last words."""
        deadline = asyncio.get_running_loop().time() + READY_S
        while not await self._answers("/ready"):
            for program in self._programs:
                assert program.process is not None
                if program.process.returncode is not None or program.starts > 1:
                    raise StackError(f"the {program.name} did not start: {self._last_words(program)}")
            if asyncio.get_running_loop().time() > deadline:
                raise StackError(f"the orchestrator was not ready after {READY_S:.0f} s: see {self.log_dir}")
            await asyncio.sleep(0.02)

    async def _answers(self, path: str) -> bool:
        assert self._listener is not None
        try:
            async with asyncio.timeout(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._listener.getsockname()[1])
                try:
                    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                    return (await reader.readline()).split()[1:2] == [b"200"]
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False

    async def _stop(self) -> None:
        """The agent first, while there is still somebody to report to."""
        self._stopping = True
        limits = {"agent": AGENT_STOP_S, "orchestrator": SERVER_STOP_S}
        for program in reversed(self._programs):
            await self._end(program, limits[program.name])
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        if self._claim is not None:
            self._claim.close()

    async def _end(self, program: Program, limit: float) -> None:
        process = program.process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(limit):
                await process.wait()
        except TimeoutError:
            self._say(f"the {program.name} did not stop within {limit:.0f} s and was killed")
            process.kill()
            await process.wait()

    def _log(self, program: Program) -> Path:
        return self.log_dir / f"{program.name}.log"

    def _last_words(self, program: Program) -> str:
        lines = self._log(program).read_text(errors="replace").strip().splitlines()
        return "\n".join(lines[-15:]) or "it said nothing"


def claim(data_dir: Path) -> IO[bytes]:
    """One `kici up` per data directory: the lock is held until the file is closed."""
    lock = (data_dir / "up.lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise StackError(
            f"another `kici up` runs on {data_dir}: stop it, or give this one its own --data-dir"
        ) from error
    return lock


def listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise StackError(f"port {port} cannot be used ({error.strerror}): choose another with --port") from error
    listener.listen(1024)
    listener.set_inheritable(True)
    return listener


def secret_file(path: Path, make: Callable[[], str]) -> Path:
    """The file, made with mode 0600 if it is not there. Two that start at once agree on one content."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path
    with os.fdopen(descriptor, "w") as file:
        file.write(make() + "\n")
    return path


def how_it_ended(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _is_server_secret(name: str) -> bool:
    return name in {"KICI_DATABASE_URL", "KICI_DATABASE_LISTEN_URL", "KICI_SECRET_KEY", "KICI_BOOTSTRAP_ADMIN_TOKEN"}
