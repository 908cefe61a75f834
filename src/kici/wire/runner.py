"""Host ↔ runner over one inherited socket. The host is the agent, or `kici run local`.

Each message is a 4-byte big-endian length and that many bytes of msgpack, to the host at most `MAX_BYTES`. The runner
says `Ready` once the SDK is imported, then gets one `Start`; it serves one job and exits. User code can reach this
socket: the host believes nothing that it does not check (step indexes, sizes, order), and holds what the runner must
not have.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from kici.engine.lockfile import LockJob
from kici.wire.codec import Codec
from kici.wire.context import JobContext

MAX_BYTES = 4 * 1024 * 1024
MIN_SECRET_BYTES = 3
"""A shorter value cannot be hidden: half of every log would go with it."""
MAX_SECRET_CHARS = 65_536
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
    packages: str = ""
    """Where the workflow's own packages are importable from, as the runner sees it; empty = it has none."""


class Cancel(Message, frozen=True, tag="cancel"):
    reason: str
    failed: bool = False
    """The job has run out of time: it fails, and is not cancelled."""


class Ping(Message, frozen=True, tag="ping"):
    """Answered by `Pong`: before `Start` at once, then by the event loop."""


class Reply(Message, frozen=True, tag="reply"):
    """The last answer to a request. `error` is empty when it went well."""

    request: int
    error: str = ""
    value: str = ""
    """Of an `Emit`: the id of the event. Of a `CacheFetch`: the key that was found, empty = none."""


class Pipe(Message, frozen=True, tag="pipe"):
    """One end of a pipe comes with it, as a descriptor (`SCM_RIGHTS`): to write what is uploaded, or to read what is
    fetched. The host keeps the other end, and no flag of it can be changed from here."""

    request: int


# ── runner → host ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Ready(Message, frozen=True, tag="ready"):
    pid: int


class Pong(Message, frozen=True, tag="pong"):
    """Answer to a `Ping`; to each one."""


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
    reason: str = ""
    """`engine.failure.Reason`, of a step that did not succeed."""
    signal: str = ""
    """`SIGKILL`: what killed its command."""
    last_lines: str = ""
    """Of its commands' output, not masked by the runner; ≤ 16 KiB."""
    peak_memory_bytes: int | None = None
    """Filled in by the host, of all the job until then."""


class Output(Message, frozen=True, tag="output"):
    """Raw bytes that a step wrote, ≤ 64 KiB, not masked. Index -1 = preparation."""

    index: int
    data: bytes


class Mask(Message, frozen=True, tag="mask"):
    """Hide this value in everything that follows. One shorter than `MIN_SECRET_BYTES` hides nothing."""

    value: str


class JobEnded(Message, frozen=True, tag="job.ended"):
    status: str
    """`success`, `failed`, `cancelled`, `skipped` (its rules say so; no step has run), `drift_dropped` (the module does
    not make this job any more)"""
    error: str = ""
    outputs: dict[str, Any] = {}
    failed_step: int | None = None
    """Index of the step that made it fail."""
    reason: str = ""
    """This and what follows: filled in by the host."""
    exit_code: int | None = None
    signal: str = ""
    peak_memory_bytes: int | None = None


class ArtifactBegin(Message, frozen=True, tag="artifact.begin"):
    """Upload. Answered by `Pipe` if the host wants the data, which `ArtifactEnd` ends; then, or at once, by `Reply`."""

    request: int
    name: str


class ArtifactEnd(Message, frozen=True, tag="artifact.end"):
    """Of what was to be written into a `Pipe`, which is closed."""

    request: int
    broken: bool = False
    """What was sent is not all: nothing is to be kept of it."""


class ArtifactFetch(Message, frozen=True, tag="artifact.fetch"):
    """Download. Answered by a `Pipe` of its bytes if there are any, then by `Reply`: if that has no error, what came is
    whole."""

    request: int
    name: str


class CacheFetch(Message, frozen=True, tag="cache.fetch"):
    """Restore. Answered as an `ArtifactFetch`, by the key that was found; an empty key = no entry."""

    request: int
    key: str
    restore: tuple[str, ...] = ()
    """Prefixes, in the order in which they are tried after the key itself."""


class CacheBegin(Message, frozen=True, tag="cache.begin"):
    """Save. Answered as an `ArtifactBegin`. A key that exists stays as it is, which is no error."""

    request: int
    key: str


class Annotated(Message, frozen=True, tag="annotated"):
    """A remark about a line of the repository."""

    index: int
    level: str
    """`notice`, `warning`, `error`"""
    message: str
    file: str = ""
    """Relative to the checkout; empty = none."""
    line: int = 0
    """1-based; 0 = none."""


class Summarized(Message, frozen=True, tag="summarized"):
    """Markdown for the page of the run; pieces of one step are put one after the other."""

    index: int
    markdown: str


class SecretOutput(Message, frozen=True, tag="secret.output"):
    """For the jobs that need this one. Answered by `Reply`. The value is masked from now on."""

    request: int
    name: str
    value: str

    def __repr__(self) -> str:
        return f"SecretOutput(request={self.request}, name={self.name!r})"


class Emit(Message, frozen=True, tag="emit"):
    """An event of the workflow's own. Answered by `Reply` with the id of the event."""

    request: int
    name: str
    payload: Any
    key: str
    """Unique within the job's attempts: the same key emits once."""


FromHost = Start | Cancel | Ping | Reply | Pipe
FromRunner = (
    Ready
    | Pong
    | StepStarted
    | StepEnded
    | Output
    | Mask
    | JobEnded
    | ArtifactBegin
    | ArtifactEnd
    | ArtifactFetch
    | CacheFetch
    | CacheBegin
    | Annotated
    | Summarized
    | SecretOutput
    | Emit
)

from_host: Codec[FromHost] = Codec(FromHost)
from_runner: Codec[FromRunner] = Codec(FromRunner)
