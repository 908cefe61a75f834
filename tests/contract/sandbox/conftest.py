from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kici.agent.sandbox import container, podman
from kici.agent.sandbox.bubblewrap import Bubblewrap
from kici.agent.sandbox.container import ContainerSandbox
from kici.agent.sandbox.contract import Box, BoxSpec, Limits, Sandbox
from kici.agent.sandbox.launch import SOURCE
from kici.agent.sandbox.none import NoSandbox
from kici.agent.sandbox.seccomp import Profile
from tests.support import container_image

SECONDS = 30


class Boxed:
    """A box in which a script of a test's runs in place of the runner, and writes to the runner's socket."""

    def __init__(self, box: Box, ours: socket.socket) -> None:
        self.box = box
        self._socket = ours

    async def said(self, seconds: float = SECONDS) -> str:
        """What it has written until it ended."""
        loop = asyncio.get_running_loop()
        found = b""
        async with asyncio.timeout(seconds):
            while data := await loop.sock_recv(self._socket, 65_536):
                found += data
        return found.decode()

    async def line(self) -> str:
        loop = asyncio.get_running_loop()
        found = b""
        async with asyncio.timeout(SECONDS):
            while not found.endswith(b"\n"):
                data = await loop.sock_recv(self._socket, 1)
                if not data:
                    raise EOFError(f"the box ended: {found!r} {self.box.last_words()}")
                found += data
        return found.decode().strip()

    async def tell(self, text: str) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, text.encode())

    def hand_over(self, *descriptors: int) -> None:
        socket.send_fds(self._socket, [b"!"], descriptors)


class Sandboxes:
    def __init__(
        self, sandbox: Sandbox, base: Path, monkeypatch: pytest.MonkeyPatch, profile: Profile = "steps"
    ) -> None:
        self.sandbox = sandbox
        self.profile = profile
        self._base = base
        self._monkeypatch = monkeypatch

    @property
    def in_container(self) -> bool:
        return self.sandbox.name == "container"

    @property
    def python(self) -> str:
        """Inside."""
        return container.python() if self.in_container else sys.executable

    @property
    def packages(self) -> list[str]:
        """Inside, where kici and what it needs are found."""
        return container.search_path().split(":") if self.in_container else [str(SOURCE)]

    @property
    def unfiltered(self) -> Sandbox:
        """The same without the list of calls: a control."""
        if not self.in_container:
            return Bubblewrap(filtered=False)
        sandbox = copy.copy(self.sandbox)
        assert isinstance(sandbox, ContainerSandbox)
        sandbox._seccomp = podman.machine().seccomp.read_bytes()
        return sandbox

    @property
    def program(self) -> str:
        """How another process makes the same, in Python."""
        if not self.in_container:
            return f"from kici.agent.sandbox.bubblewrap import Bubblewrap; sandbox = Bubblewrap({self.profile!r})"
        assert isinstance(self.sandbox, ContainerSandbox)
        options = self.sandbox._options
        return (
            "from kici.agent.sandbox import podman; from kici.agent.sandbox.container import ContainerSandbox; "
            f"sandbox = ContainerSandbox(podman.Options({options.image!r}, {options.agent + 'other'!r}))"
        )

    def root(self, slot: int = 0) -> Path:
        root = self._base / f"job-{slot}"
        for name in ("src", "kici", "tmp", "home"):
            (root / name).mkdir(parents=True, exist_ok=True)
        return root

    @contextlib.asynccontextmanager
    async def running(
        self,
        script: str,
        *,
        slot: int = 0,
        network: bool = True,
        argv: list[str] | None = None,
        limits: Limits = Limits(),
    ) -> AsyncIterator[Boxed]:
        """A bash script, or a program, in the runner's place."""
        program = argv or ["/bin/bash", "-c", f"exec >&3 2>&1; read -r go <&3\n{script}"]
        for module in ("none", "bubblewrap", "container"):
            self._monkeypatch.setattr(f"kici.agent.sandbox.{module}.runner_argv", lambda: program)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours:
            with theirs:
                async with asyncio.timeout(SECONDS):
                    box = await self.sandbox.start(BoxSpec(slot, self.root(slot), network, limits), theirs.fileno())
            boxed = Boxed(box, ours)
            try:
                if argv is None:  # like a runner, it does nothing before the host tells it
                    await boxed.tell("\n")
                yield boxed
            finally:
                async with asyncio.timeout(SECONDS):
                    await box.kill()

    async def said(self, script: str, *, slot: int = 0, network: bool = True) -> str:
        async with self.running(script, slot=slot, network=network) as boxed:
            return await boxed.said()


@pytest.fixture
def base() -> Iterator[Path]:
    """Not pytest's tmp_path: other users must pass through it."""
    path = Path(tempfile.mkdtemp(prefix="kici-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def _containers() -> Iterator[ContainerSandbox]:
    container_image.skip_without_podman()
    with tempfile.TemporaryDirectory(prefix="kici-test-") as directory, container_image.made(Path(directory)) as image:
        yield ContainerSandbox(podman.Options(image, f"test{os.getpid()}"))


def _sandboxes(request: pytest.FixtureRequest, name: str, base: Path, monkeypatch: pytest.MonkeyPatch) -> Sandboxes:
    if name == "container":
        return Sandboxes(request.getfixturevalue("_containers"), base, monkeypatch)
    if name == "none":
        return Sandboxes(NoSandbox(), base, monkeypatch)
    profile: Profile = "image-build" if name == "image-build" else "steps"
    return Sandboxes(Bubblewrap(profile), base, monkeypatch, profile)


@pytest.fixture(params=["none", "bubblewrap", "image-build", "container"])
def boxes(request: pytest.FixtureRequest, base: Path, monkeypatch: pytest.MonkeyPatch) -> Sandboxes:
    return _sandboxes(request, request.param, base, monkeypatch)


@pytest.fixture
def none(request: pytest.FixtureRequest, base: Path, monkeypatch: pytest.MonkeyPatch) -> Sandboxes:
    return _sandboxes(request, "none", base, monkeypatch)


@pytest.fixture(params=["bubblewrap", "image-build", "container"])
def isolated(request: pytest.FixtureRequest, base: Path, monkeypatch: pytest.MonkeyPatch) -> Sandboxes:
    """All that keep jobs apart."""
    return _sandboxes(request, request.param, base, monkeypatch)


@pytest.fixture(params=["bubblewrap", "container"])
def stripped(request: pytest.FixtureRequest, base: Path, monkeypatch: pytest.MonkeyPatch) -> Sandboxes:
    """Those whose jobs have no capability at all."""
    return _sandboxes(request, request.param, base, monkeypatch)


@pytest.fixture(params=["image-build", "container"])
def ranged(request: pytest.FixtureRequest, base: Path, monkeypatch: pytest.MonkeyPatch) -> Sandboxes:
    """Those whose jobs have a namespace with many users."""
    return _sandboxes(request, request.param, base, monkeypatch)


@pytest.fixture
def steps(request: pytest.FixtureRequest, base: Path, monkeypatch: pytest.MonkeyPatch) -> Sandboxes:
    return _sandboxes(request, "bubblewrap", base, monkeypatch)


@pytest.fixture
def image_build(request: pytest.FixtureRequest, base: Path, monkeypatch: pytest.MonkeyPatch) -> Sandboxes:
    return _sandboxes(request, "image-build", base, monkeypatch)


@pytest.fixture(params=["none", "bubblewrap", "container"])
def limited(request: pytest.FixtureRequest, base: Path, monkeypatch: pytest.MonkeyPatch) -> Sandboxes:
    return _sandboxes(request, request.param, base, monkeypatch)


@pytest.fixture(params=["none", "bubblewrap"])
def grouped(request: pytest.FixtureRequest, base: Path, monkeypatch: pytest.MonkeyPatch) -> Sandboxes:
    """Those whose limits kici keeps by control groups of its own."""
    return _sandboxes(request, request.param, base, monkeypatch)


@pytest.fixture
def contained(request: pytest.FixtureRequest, base: Path, monkeypatch: pytest.MonkeyPatch) -> Sandboxes:
    return _sandboxes(request, "container", base, monkeypatch)
