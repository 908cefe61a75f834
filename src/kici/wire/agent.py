"""Agent ↔ orchestrator over one WebSocket.

The agent dials and says `Hello`; the answer is `Welcome` or a close with a code. From then on either side sends frames.

A frame with `seq` > 0 wants to be acknowledged: its sender keeps it until an `Ack` lists its number, and sends it
again, with the same number, after a reconnect. The orchestrator acknowledges a frame only after what it tells is
committed; it may acknowledge in any order. `Ack.refused` names frames that were read and thrown away, with the reason:
they are not sent again. Numbers grow per `boot_id` and start at 1. The orchestrator's frames are not acknowledged: what
it wants is in the database, and it repeats itself (`Dispatch` until the ack deadline, `Cancel` after every reconnect).

A WebSocket message holds one frame, or several in their order (`pack`): what is to be sent at the same moment goes
together.

Every message about a job carries its `attempt`; one of an older attempt is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import msgspec
from msgspec import Struct

from kici.wire.codec import Codec
from kici.wire.context import JobContext


class Message(Struct, frozen=True, tag_field="type", omit_defaults=True):
    pass


class AttemptRef(Struct, frozen=True):
    job_id: str
    attempt: int


# ── agent → orchestrator ──────────────────────────────────────────────────────────────────────────────────────────────


class Hello(Message, frozen=True, tag="hello"):
    agent_id: str
    boot_id: str
    """One start of one agent process."""
    token: str
    version: str
    protocol_min: int
    protocol_max: int
    labels: tuple[str, ...]
    """Operator's labels and the automatic `kici:os|arch|host:` ones."""
    slots: int
    clock_ms: int
    """Wall clock of the agent when it sent this: the orchestrator warns of a skew."""
    attempts: tuple[AttemptRef, ...] = ()
    """What it has accepted and not yet reported the end of (end = acknowledged). An attempt that is missing is lost."""
    draining: bool = False
    facts: dict[str, Any] = {}
    """hostname, os, arch, cpus, memory_mb, sandbox, python: for people."""

    def __repr__(self) -> str:
        return f"Hello(agent_id={self.agent_id!r}, boot_id={self.boot_id!r}, labels={self.labels!r})"


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """Every `Welcome.heartbeat_s`. Never waits behind other frames."""

    number: int
    attempts: tuple[AttemptRef, ...] = ()
    """Those whose runner answers."""
    draining: bool = False
    not_taking: str = ""
    """Why it takes no job for now, in words that stay the same while it lasts: `disk: …`. Empty = it does."""


class JobAccepted(Message, frozen=True, tag="job.accepted"):
    """The agent will run it. User code starts only after this frame's acknowledgement."""

    job_id: str
    attempt: int


class JobRejected(Message, frozen=True, tag="job.rejected"):
    """The agent will not run it (`busy`, `draining`, `disk`): it goes back to the queue without using up an attempt."""

    job_id: str
    attempt: int
    reason: str


class Annotation(Struct, frozen=True, omit_defaults=True):
    """A remark of a step about a line of the repository."""

    level: str
    """`notice`, `warning`, `error`"""
    message: str
    file: str = ""
    """Relative to the checkout; empty = none."""
    line: int = 0
    """1-based; 0 = none."""


ANNOTATION_LEVELS = ("notice", "warning", "error")
MAX_ANNOTATIONS = 50
"""Of a step. What is beyond these limits is left out, which the step's log says."""
MAX_ANNOTATION_CHARS = 2_000
MAX_FILE_CHARS = 500
MAX_SUMMARY_BYTES = 65_536
"""Of a step."""


class StepStatusChanged(Message, frozen=True, tag="step.status"):
    job_id: str
    attempt: int
    step_index: int
    """-1 = preparation (checkout and so on)."""
    name: str
    status: str
    """`running` or a terminal `engine.lifecycle.StepStatus`."""
    at_ms: int
    started_at_ms: int = 0
    """Of a terminal status."""
    exit_code: int | None = None
    error: str = ""
    log_chunks: int = 0
    """Of a terminal status: how many chunks the step's log has in all."""
    step_attempt: int = 1
    annotations: tuple[Annotation, ...] = ()
    """Of a terminal status, masked. Of a step that was tried several times those of the last try; so is `summary`."""
    summary: str = ""
    """Of a terminal status: markdown, masked."""
    reason: str = ""
    """`engine.failure.Reason`, of a status that is no success."""
    signal: str = ""
    """`SIGKILL`: what killed its command."""
    last_lines: str = ""
    """Of its commands' output: `engine.failure.last_lines`, masked."""
    peak_memory_bytes: int | None = None
    """Of all the job until then. None: it could not be counted."""


class JobStatusChanged(Message, frozen=True, tag="job.status"):
    job_id: str
    attempt: int
    status: str
    """`cancelling`, or terminal: `success`, `failed`, `cancelled`, `skipped` (its rules say so), `drift_dropped` (the
    module does not make it)."""
    at_ms: int
    error: str = ""
    outputs: dict[str, Any] = {}
    """Step name → value. Encoded at most `engine.evaluation.output_limit`: 64 KiB, of an evaluation more."""
    failed_before_user_code: bool = False
    reason: str = ""
    """`engine.failure.Reason`; with what follows: of the step that made it fail."""
    exit_code: int | None = None
    signal: str = ""
    peak_memory_bytes: int | None = None


class LogChunk(Message, frozen=True, tag="log.chunk"):
    """Lines of one step, in order. Sent within the byte window of the job: see `LogWindow`."""

    job_id: str
    attempt: int
    step_index: int
    sequence: int
    """From 0, without gaps."""
    first_line: int
    """From 0."""
    lines: int
    data: bytes
    """zstd of UTF-8 lines, each `2026-01-02T03:04:05.678Z text\\n`, masked."""

    @property
    def cost(self) -> int:
        """Bytes of a window that the chunk takes: its data, and about what a message costs whoever holds it."""
        return len(self.data) + LOG_CHUNK_BYTES


class Goodbye(Message, frozen=True, tag="goodbye"):
    """The agent leaves and has no attempt any more."""

    reason: str


FromAgent = Hello | Heartbeat | JobAccepted | JobRejected | StepStatusChanged | JobStatusChanged | LogChunk | Goodbye


# ── orchestrator → agent ──────────────────────────────────────────────────────────────────────────────────────────────


class Welcome(Message, frozen=True, tag="welcome"):
    session_id: str
    protocol: int
    version: str
    heartbeat_s: float
    silent_s: float
    recovery_s: float
    forget: tuple[AttemptRef, ...] = ()
    """Attempts of the hello that are not the agent's any more: kill them, report nothing."""


class HeartbeatAck(Message, frozen=True, tag="heartbeat.ack"):
    """Sent only while the coordinator's own lease is valid."""

    number: int


class Ack(Message, frozen=True, tag="ack"):
    seqs: tuple[int, ...]
    refused: tuple[tuple[int, str], ...] = ()


class Checkout(Struct, frozen=True, omit_defaults=True):
    """Where the code comes from. Credentials go in a header, never in the URL."""

    url: str
    """Absolute, or a path below the orchestrator's own URL when it starts with `/`."""
    sha: str
    workflow_sha: str
    """Commit whose `.kici/` runs: the base of an untrusted pull request, else `sha`."""
    ref: str = ""
    username: str = ""
    password: str = ""
    trusted: bool = False
    """Its event is: what an agent fetches now it may lend to other jobs that are."""

    def __repr__(self) -> str:
        return f"Checkout(url={self.url!r}, sha={self.sha!r}, workflow_sha={self.workflow_sha!r})"


class Dispatch(Message, frozen=True, tag="job.dispatch"):
    run_id: str
    job_id: str
    attempt: int
    workflow: str
    job: str
    name: str
    checkout: Checkout
    lock_sha256: str
    """Of the lock file's bytes at `checkout.workflow_sha`. The job's definition is read from there."""
    job_token: str
    """Authorizes this attempt's HTTP requests: git, context, artifacts. Ends with the attempt."""
    context: JobContext | None = None
    """None: too large for a message, or with secrets; `GET /api/v1/agent/jobs/{job_id}/context` has it (msgpack)."""
    kill_after_silence_s: float | None = None
    """Set when the next attempt may start by itself: the agent then kills user code this long after it sent its last
    acknowledged heartbeat. None: it runs on and reports when it is back."""
    timeout_ms: int | None = None
    """Of the whole attempt, from its acceptance: the job's own timeout, or the orchestrator's for jobs without one."""

    def __repr__(self) -> str:
        return f"Dispatch(job_id={self.job_id!r}, attempt={self.attempt}, name={self.name!r})"


class Cancel(Message, frozen=True, tag="job.cancel"):
    job_id: str
    attempt: int
    reason: str
    force: bool = False


class LogWindow(Message, frozen=True, tag="log.window"):
    """From now on each job may have this many bytes of log unacknowledged (`LogChunk.cost`), and always one chunk.

    On a new socket it is `LOG_WINDOW_BYTES` until the orchestrator says otherwise.
    """

    bytes: int


FromOrchestrator = Welcome | HeartbeatAck | Ack | Dispatch | Cancel | LogWindow

LOG_WINDOW_BYTES = 65_536
MAX_LOG_WINDOW_BYTES = 524_288
"""More would not be faster: it would stand in queues, and what other jobs tell would stand behind it."""
LOG_CHUNK_BYTES = 1_024


class AgentFrame(Struct, frozen=True, array_like=True):
    seq: int
    """0 = not acknowledged."""
    body: FromAgent


class OrchestratorFrame(Struct, frozen=True, array_like=True):
    body: FromOrchestrator


agent_frames: Codec[AgentFrame] = Codec(AgentFrame)
orchestrator_frames: Codec[OrchestratorFrame] = Codec(OrchestratorFrame)

MAX_PACK_BYTES = 65_536
"""Of frames that go together in one message; a larger frame goes alone."""


class _Pack(Struct, frozen=True):
    frames: tuple[msgspec.Raw, ...]


# Not structs: msgspec tells a frame, which is an array, from a dictionary, but not from another struct without a tag.
class _AgentPack(TypedDict):
    frames: tuple[AgentFrame, ...]


class _OrchestratorPack(TypedDict):
    frames: tuple[OrchestratorFrame, ...]


_packs: Codec[_Pack] = Codec(_Pack)
_from_agent: Codec[AgentFrame | _AgentPack] = Codec(AgentFrame | _AgentPack)
_from_orchestrator: Codec[OrchestratorFrame | _OrchestratorPack] = Codec(OrchestratorFrame | _OrchestratorPack)


def pack(frames: Sequence[bytes]) -> bytes:
    """One message of frames that are encoded already, at least one."""
    return frames[0] if len(frames) == 1 else _packs.encode(_Pack(tuple(map(msgspec.Raw, frames))))


def unpack_agent(data: bytes) -> Sequence[AgentFrame]:
    """The frames of one message from an agent. Raises `UnreadableMessage`."""
    found = _from_agent.decode(data)
    return (found,) if isinstance(found, AgentFrame) else found["frames"]


def unpack_orchestrator(data: bytes | memoryview) -> Sequence[OrchestratorFrame]:
    """The frames of one message from the orchestrator. Raises `UnreadableMessage`."""
    found = _from_orchestrator.decode(data)
    return (found,) if isinstance(found, OrchestratorFrame) else found["frames"]
