"""git, hardened by its environment: nothing that a repository or a machine is configured with runs a program.

Hooks, file-system monitors, filters, external diffs, credential helpers, ssh and every transport but HTTP are off;
redirects are not followed. Credentials stand in a header that belongs to one origin, in the environment of the git
process alone: never in a URL, an argument or a file.

A root agent's git runs as the slot's user, without capabilities, on a view of the machine where only the job's own
directory can be written.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from urllib.parse import urlsplit

from kici.agent import ca_bundle
from kici.agent.errors import DiskFull, PreparationFailed
from kici.agent.sandbox.bubblewrap import find_bwrap
from kici.agent.workspace import Workspace
from kici.subprocesses import started

_NEUTRAL = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.sshCommand": "false",
    "core.askPass": "",
    "core.attributesFile": "/dev/null",
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "core.excludesFile": "/dev/null",
    "credential.helper": "",
    "diff.external": "",
    "fetch.recurseSubmodules": "false",
    "fetch.unpackLimit": "1",  # packs are what a mirror can keep
    "submodule.recurse": "false",
    "transfer.bundleURI": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "http.followRedirects": "false",
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
    "init.defaultBranch": "main",
    "protocol.version": "2",
    "checkout.workers": "0",
    "advice.detachedHead": "false",
}
_INHERITED = re.compile(r"PATH|SSL_CERT_(FILE|DIR)|GIT_SSL_CAINFO|(HTTP|HTTPS|NO|ALL)_PROXY", re.IGNORECASE)
_FULL = ("No space left on device", "Disk quota exceeded", "unable to write file")
"""The last is all that git says where the working tree has no room; whatever else it may be, it is the machine's."""
_URL = re.compile(r"https?://[^\s\"'\\<>^`{|}\x00-\x20]+")
_INSIDE = "/tmp/job"  # noqa: S108 - a mount of a namespace of its own
_NOTHING: Mapping[str, str] = MappingProxyType({})
MAX_OUTPUT_BYTES = 128 * 1024 * 1024
_VIEWS = 5
_NO_VIEW = re.compile(r"bwrap: .*mount")
"""bwrap takes its view of the machine mount by mount, and fails if one of them goes meanwhile: a container that ends
on this machine does that. Then git has not begun."""


class GitFailed(PreparationFailed):
    """The message is what git said."""


class Remote:
    """Where to fetch from, and the header that opens it."""

    def __init__(self, url: str, authorization: str) -> None:
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError as error:
            raise PreparationFailed(f"the repository's address {url!r} is no URL: {error}") from None
        if not _URL.fullmatch(url) or not parts.hostname or parts.username or parts.password:
            raise PreparationFailed(f"the repository's address {url!r} is not a plain http:// or https:// URL")
        self.url = url
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self._authorization = authorization

    def at(self, url: str, *, opened: bool) -> Remote:
        """Another address, which gets the credential only if it is `opened` and of the same origin."""
        other = Remote(url, "")
        return Remote(url, self._authorization) if opened and other.origin == self.origin else other

    def config(self) -> dict[str, str]:
        if not self._authorization:
            return {}
        return {f"http.{self.origin}/.extraHeader": f"Authorization: {self._authorization}"}


def basic(username: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{username or 'x-access-token'}:{password}".encode()).decode()


class Git:
    """The repository in a workspace's `src/`, or `below` it, before any user code could write there."""

    def __init__(self, space: Workspace, below: str = "") -> None:
        self.space = space
        self.top = space.src / below
        self._prefix = _confinement(space)
        self._root = str(space.root) if space.owner is None else _INSIDE
        self._directory = f"{self._root}/src/{below}".rstrip("/")

    async def run(
        self,
        *arguments: str,
        remote: Remote | None = None,
        config: Mapping[str, str] = _NOTHING,
        feed: bytes = b"",
        timeout_s: float = 60.0,
    ) -> bytes:
        """Standard output. Raises `GitFailed` with what git said, `DiskFull`; kills it when cancelled or too slow."""
        settings = _NEUTRAL | (remote.config() if remote else {}) | dict(config)
        for view in range(1, _VIEWS + 1):
            code, out, said = await self._run(arguments, settings, feed, timeout_s)
            if not code:
                return out
            if view == _VIEWS or not _NO_VIEW.match(said):
                self._raise(arguments, code, said)
        raise AssertionError

    async def _run(
        self, arguments: Sequence[str], settings: Mapping[str, str], feed: bytes, timeout_s: float
    ) -> tuple[int, bytes, str]:
        try:
            async with (
                started(
                    *self._prefix,
                    *("git", "-C", self._directory),
                    *arguments,
                    cwd="/",
                    env=self._environment(settings),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    start_new_session=True,
                ) as process,
                asyncio.timeout(timeout_s),
            ):
                out, said = await _talk(process, feed)
                code = await process.wait()
        except TimeoutError:
            raise GitFailed(f"git {arguments[0]} took longer than {timeout_s:.0f} s") from None
        return code, out, said.decode(errors="replace").strip()

    def _environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        environment = _environment(f"{self._root}/home", settings)
        if (self.space.root / ca_bundle.FILE).exists():
            # The operator's file may lie where the slot's user cannot go.
            environment["GIT_SSL_CAINFO"] = environment["SSL_CERT_FILE"] = f"{self._root}/{ca_bundle.FILE}"
        return environment

    def _raise(self, arguments: Sequence[str], code: int, said: str) -> None:
        if any(sign in said for sign in _FULL):
            raise DiskFull(self.space.root)
        raise GitFailed(f"git {arguments[0]} failed: {said or f'exit code {code}'}")


def _confinement(space: Workspace) -> list[str]:
    """Programs that start git as the slot's user. The way to the work directory may be open to root alone."""
    if space.owner is None:
        return []
    capabilities = (option for name in ("SETUID", "SETGID", "SETPCAP") for option in ("--cap-add", f"CAP_{name}"))
    return [
        *(find_bwrap(), "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--tmpfs", "/tmp"),  # noqa: S108
        *("--bind", str(space.root), _INSIDE, "--chdir", "/", "--cap-drop", "ALL", *capabilities, "--"),
        *("setpriv", "--reuid", str(space.owner.uid), "--regid", str(space.owner.gid), "--clear-groups"),
        *("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"),
    ]


async def _talk(process: asyncio.subprocess.Process, feed: bytes) -> tuple[bytes, bytes]:
    assert process.stdin
    assert process.stdout
    assert process.stderr
    async with asyncio.TaskGroup() as group:
        out = group.create_task(_read(process.stdout, MAX_OUTPUT_BYTES))
        said = group.create_task(_read(process.stderr, 65_536))
        with contextlib.suppress(ConnectionError):
            process.stdin.write(feed)
            await process.stdin.drain()
        process.stdin.close()
    return out.result(), said.result()


async def _read(stream: asyncio.StreamReader, limit: int) -> bytes:
    """The first `limit` bytes; the rest is read and dropped, so that git does not hang."""
    pieces, size = [], 0
    while piece := await stream.read(262_144):
        if size < limit:
            pieces.append(piece[: limit - size])
        size += len(piece)
    return b"".join(pieces)


def _environment(home: str, config: Mapping[str, str]) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if _INHERITED.fullmatch(name)}
    environment |= {
        "HOME": home,
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_ALLOW_PROTOCOL": "http:https",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_CONFIG_COUNT": str(len(config)),
    }
    for number, (key, value) in enumerate(config.items()):
        environment[f"GIT_CONFIG_KEY_{number}"] = key
        environment[f"GIT_CONFIG_VALUE_{number}"] = value
    return environment
