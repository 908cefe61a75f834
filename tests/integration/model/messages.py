"""What the test asks of a life, and what it hears back: one msgpack message each, its length in front."""

from __future__ import annotations

import struct

import msgspec
from msgspec import Struct

from kici.engine.events import Event
from kici.engine.lockfile import LockWorkflow
from kici.wire.agent import AttemptRef, JobAccepted, JobRejected, JobStatusChanged, StepStatusChanged

LENGTH = struct.Struct("!I")


class Message(Struct, frozen=True, tag=True):
    pass


class Delivered(Struct, frozen=True):
    """Body of a delivery: what the pipeline would find at the commit."""

    workflow: LockWorkflow
    event: Event


# ── test → life ───────────────────────────────────────────────────────────────────────────────────────────────────────


class TakeIn(Message, frozen=True):
    """A webhook, or the request to run a run again."""

    delivery_id: str
    provider: str
    body: bytes


class WorkEvents(Message, frozen=True):
    """Claim what is due of the event log and make its runs."""


class Hello(Message, frozen=True):
    agent_id: str
    boot_id: str
    labels: tuple[str, ...]
    attempts: tuple[AttemptRef, ...]


class Tell(Message, frozen=True):
    """A frame of an agent."""

    session_id: str
    agent_id: str
    frame: JobAccepted | JobRejected | StepStatusChanged | JobStatusChanged
    is_false: bool = False
    """It tells of an attempt that is not the agent's, or not any more: it must not be taken."""


class Cut(Message, frozen=True):
    """The agent's socket is gone; what it has told and nobody has answered may be applied or not."""

    session_id: str


class FallSilent(Message, frozen=True):
    session_id: str


class BeHeard(Message, frozen=True):
    session_id: str


class Leave(Message, frozen=True):
    session_id: str


class Dispatch(Message, frozen=True):
    """One pass of the dispatcher."""

    free: dict[str, int]
    """Session → slots."""
    gone: tuple[str, ...] = ()
    """Sessions whose socket ends between the claim and the sending."""
    woken: bool = True
    """Another coordinator has told that something may have changed."""


class AskStops(Message, frozen=True):
    """What these agents are to be told to stop."""

    sessions: tuple[str, ...]


class CancelRun(Message, frozen=True):
    run_id: str
    force: bool


class RenewLease(Message, frozen=True):
    """The coordinator's own."""


class Sweep(Message, frozen=True):
    """One pass of one of the leader's services."""

    service: str


Body = (
    TakeIn
    | WorkEvents
    | Hello
    | Tell
    | Cut
    | FallSilent
    | BeHeard
    | Leave
    | Dispatch
    | AskStops
    | CancelRun
    | RenewLease
    | Sweep
)


class Request(Struct, frozen=True, array_like=True):
    number: int
    body: Body


# ── life → test ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Ready(Message, frozen=True):
    """The life has its lease."""

    instance: str


class Done(Message, frozen=True):
    pass


class TakenIn(Message, frozen=True):
    new: bool


class Adopted(Message, frozen=True):
    session_id: str
    kept: dict[str, int]
    forget: tuple[AttemptRef, ...]


class Taken(Message, frozen=True):
    pass


class Refused(Message, frozen=True):
    reason: str


class Superseded(Message, frozen=True):
    pass


class Sent(Struct, frozen=True):
    """A dispatch that went out to an agent."""

    session_id: str
    job_id: str
    run_id: str
    attempt: int
    name: str
    kills: bool
    """The agent kills user code when it has heard nothing for long."""


class Dispatched(Message, frozen=True):
    sent: tuple[Sent, ...]


class Stop(Struct, frozen=True):
    session_id: str
    job_id: str
    attempt: int
    force: bool


class Stops(Message, frozen=True):
    stops: tuple[Stop, ...]


class Unable(Message, frozen=True):
    """An answer that an operator or an agent may well get: no lease, no such run, the run has ended."""

    reason: str


class Broken(Message, frozen=True):
    """What must not happen."""

    trace: str


Answer = Ready | Done | TakenIn | Adopted | Taken | Refused | Superseded | Dispatched | Stops | Unable | Broken


class Response(Struct, frozen=True, array_like=True):
    number: int
    """0 = `Ready`."""
    body: Answer


_encode = msgspec.msgpack.Encoder().encode
_requests = msgspec.msgpack.Decoder(Request)
_responses = msgspec.msgpack.Decoder(Response)


def packed(message: Request | Response) -> bytes:
    data = _encode(message)
    return LENGTH.pack(len(data)) + data


def request(data: bytes) -> Request:
    return _requests.decode(data)


def response(data: bytes) -> Response:
    return _responses.decode(data)
