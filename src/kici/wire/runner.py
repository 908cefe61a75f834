"""Host ↔ runner over one inherited socket. The host is the agent, or `kici run local`.

Each message is a 4-byte big-endian length and that many bytes of msgpack, at most `MAX_BYTES`. The runner says `Ready`
once the SDK is imported, then gets one `Start`; it serves one job and exits. User code can reach this socket: the host
believes nothing that it does not check (step indexes, sizes, order), and holds what the runner must not have.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from kici.engine.lockfile import LockJob
from kici.wire.codec import Codec
from kici.wire.context import JobContext

MAX_BYTES = 4 * 1024 * 1024
FD = 3
"""Descriptor number of the socket inside the runner."""


class Message(Struct, frozen=True, tag_field="type", omit_defaults=True):
    pass


# ── host → runner ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Start(Message, frozen=True, tag="start"):
    root: str
    """Working directory of the steps: the checkout, as the runner sees it."""
    kici_dir: str
    """The verified `.kici/`, as the runner sees it."""
    module: str
    """Path of the workflow's module below `kici_dir`."""
    export: str
    context: JobContext
    job: LockJob
    env: dict[str, str]
    """The whole environment of user code: allow-list, workflow and job, `KICI_*`."""
    tmp: str
    """A directory of the job's own, outside the checkout, for `$KICI_ENV` and so on."""


class Cancel(Message, frozen=True, tag="cancel"):
    reason: str


class Reply(Message, frozen=True, tag="reply"):
    """Answer to `ArtifactEnd`, or the end of an `ArtifactFetch`. `error` is empty when it went well."""

    request: int
    error: str = ""


class ArtifactData(Message, frozen=True, tag="artifact.data"):
    """A piece of an artifact's tar stream, both ways; ≤ 256 KiB."""

    request: int
    data: bytes


# ── runner → host ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Ready(Message, frozen=True, tag="ready"):
    pid: int


class StepStarted(Message, frozen=True, tag="step.started"):
    index: int
    attempt: int = 1
    """Of the step, from 1: retries."""


class StepEnded(Message, frozen=True, tag="step.ended"):
    index: int
    status: str
    """`success`, `failed`, `skipped`, `cancelled`"""
    exit_code: int | None = None
    error: str = ""
    attempt: int = 1
    final: bool = True
    """False: the step failed and will be tried again."""


class Output(Message, frozen=True, tag="output"):
    """Raw bytes that a step wrote, ≤ 64 KiB, not masked. Index -1 = preparation."""

    index: int
    data: bytes


class Mask(Message, frozen=True, tag="mask"):
    """Hide this value in everything that follows."""

    value: str


class JobEnded(Message, frozen=True, tag="job.ended"):
    status: str
    """`success`, `failed`, `cancelled`"""
    error: str = ""
    outputs: dict[str, Any] = {}


class ArtifactBegin(Message, frozen=True, tag="artifact.begin"):
    """Upload: followed by `ArtifactData` and `ArtifactEnd`; answered by `Reply`."""

    request: int
    name: str


class ArtifactEnd(Message, frozen=True, tag="artifact.end"):
    request: int


class ArtifactFetch(Message, frozen=True, tag="artifact.fetch"):
    """Download: answered by `ArtifactData` pieces, then `Reply`."""

    request: int
    name: str


FromHost = Start | Cancel | Reply | ArtifactData
FromRunner = (
    Ready
    | StepStarted
    | StepEnded
    | Output
    | Mask
    | JobEnded
    | ArtifactBegin
    | ArtifactData
    | ArtifactEnd
    | ArtifactFetch
)

from_host: Codec[FromHost] = Codec(FromHost)
from_runner: Codec[FromRunner] = Codec(FromRunner)
