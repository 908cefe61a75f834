"""The one way in which the orchestrator runs git.

Arguments are a list. The environment is made from nothing: no configuration of the user or the system, no hooks, no
fsmonitor, no credential helper, no prompt, and no transport but HTTP(S), so that neither `ext::` nor a path can be
reached through a URL. Time and output are bounded. git starts children of its own, so it is killed as a group.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from msgspec import Struct

from kici.forges.git.errors import GitUnavailable
from kici.subprocesses import started, to_its_end

DEFAULT_TIMEOUT_S = 30.0
DEFAULT_OUTPUT_BYTES = 8 * 1024 * 1024
_STDERR_BYTES = 16_384
_CHUNK = 65_536

_PASSED_ON = (
    "PATH",
    "LANG",
    "TMPDIR",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "GIT_SSL_CAINFO",
)
"""Of the orchestrator's own environment: how to find programs, proxies and certificates. Nothing else."""

_CONFIG = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.sshCommand": "false",
    "core.askPass": "",
    "credential.helper": "",
    "fetch.unpackLimit": "1",
    "gc.auto": "0",
    "http.followRedirects": "false",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "20",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "protocol.http.allow": "always",
    "protocol.https.allow": "always",
    "protocol.version": "2",
    "submodule.recurse": "false",
}


class Finished(Struct, frozen=True):
    code: int
    stdout: bytes
    stderr: bytes
    truncated: bool = False
    """It wrote more than was allowed and was killed; `stdout` holds the beginning."""


def environment(config: Mapping[str, str] | None = None) -> dict[str, str]:
    """The whole environment of a git process. `config` is added to what neutralises git; here, secrets may stand."""
    entries = _CONFIG | dict(config or {})
    environ = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environ |= {
        "LC_ALL": "C.UTF-8",
        "HOME": "/nonexistent",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_CONFIG_COUNT": str(len(entries)),
    }
    for index, (key, value) in enumerate(entries.items()):
        environ[f"GIT_CONFIG_KEY_{index}"] = key
        environ[f"GIT_CONFIG_VALUE_{index}"] = value
    return environ


class Running:
    """A git process. What it says on stderr is read all the time, so it never blocks there."""

    def __init__(self, process: Process, stderr: asyncio.Task[bytes]) -> None:
        assert process.stdin
        assert process.stdout
        self._process = process
        self._stderr = stderr
        self.stdin = process.stdin
        self.stdout = process.stdout

    async def feed(self, data: bytes) -> None:
        """Write all of `data` and close. A process that has stopped reading says why by how it ends."""
        if data and not self.stdin.is_closing():
            with suppress(BrokenPipeError, ConnectionResetError):
                self.stdin.write(data)
                await self.stdin.drain()
        self.stdin.close()

    async def ended(self) -> tuple[int, bytes]:
        """Wait for the end: exit status, and the last of what it said."""
        return await self._process.wait(), await self._stderr

    def kill(self) -> None:
        """At once, with its children."""
        if self._process.returncode is None:  # else the number may already be a stranger's
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def dispose(self) -> None:
        """Kill what still runs, reap it, and read its pipes to their end: a paused one would stay open for ever."""
        self.kill()
        self.stdin.close()
        while await self.stdout.read(_CHUNK):
            pass
        await self.ended()


@asynccontextmanager
async def start(
    args: Sequence[str], *, config: Mapping[str, str] | None = None, extra_env: Mapping[str, str] | None = None
) -> AsyncIterator[Running]:
    """`git <args>`. Nothing of it runs after the block."""
    async with started(
        "git",
        *args,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        cwd="/",
        env=environment(config) | dict(extra_env or {}),
        start_new_session=True,
    ) as process:
        assert process.stderr
        running = Running(process, asyncio.create_task(_tail(process.stderr)))
        try:
            yield running
        finally:
            await to_its_end(running.dispose())


async def run(
    args: Sequence[str],
    *,
    stdin: bytes = b"",
    config: Mapping[str, str] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    max_output: int = DEFAULT_OUTPUT_BYTES,
) -> Finished:
    """Run to its end. Raises `GitUnavailable` when it takes longer than `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s), start(args, config=config) as git:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(git.feed(stdin))
                stdout, truncated = await _head(git.stdout, max_output)
                if truncated:  # who waits for it now, or for its input to be taken, waits for ever: its pipe is full
                    await git.dispose()
            code, stderr = await git.ended()
            return Finished(code, stdout, stderr, truncated)
    except TimeoutError as error:
        raise GitUnavailable(f"git {_verb(args)} took longer than {timeout_s:g} s and was stopped") from error


async def _head(stream: asyncio.StreamReader, limit: int) -> tuple[bytes, bool]:
    read = bytearray()
    while chunk := await stream.read(_CHUNK):
        read += chunk
        if len(read) > limit:
            return bytes(read[:limit]), True
    return bytes(read), False


async def _tail(stream: asyncio.StreamReader) -> bytes:
    kept = b""
    while chunk := await stream.read(_CHUNK):
        kept = (kept + chunk)[-_STDERR_BYTES:]
    return kept


def _verb(args: Sequence[str]) -> str:
    return next((arg for arg in args if not arg.startswith("-")), "")
