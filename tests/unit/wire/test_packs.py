from __future__ import annotations

import pytest

from kici.wire.agent import (
    Ack,
    AgentFrame,
    Heartbeat,
    HeartbeatAck,
    JobAccepted,
    OrchestratorFrame,
    agent_frames,
    orchestrator_frames,
    pack,
    unpack_agent,
    unpack_orchestrator,
)
from kici.wire.codec import UnreadableMessage

FRAMES = [AgentFrame(1, JobAccepted("a", 1)), AgentFrame(0, Heartbeat(7)), AgentFrame(2, JobAccepted("b", 3))]


def test_frames_that_go_together_come_out_in_their_order() -> None:
    assert list(unpack_agent(pack([agent_frames.encode(frame) for frame in FRAMES]))) == FRAMES


def test_one_frame_alone_is_a_message_as_it_stands() -> None:
    alone = agent_frames.encode(FRAMES[0])
    assert pack([alone]) == alone
    assert list(unpack_agent(alone)) == FRAMES[:1]


def test_the_orchestrators_frames_are_packed_the_same_way() -> None:
    frames = [OrchestratorFrame(HeartbeatAck(1)), OrchestratorFrame(Ack((1, 2), ((3, "no"),)))]
    assert list(unpack_orchestrator(pack([orchestrator_frames.encode(frame) for frame in frames]))) == frames


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x81\xa6frames\x91\x01", b"\x80"])
def test_what_is_neither_a_frame_nor_a_pack_cannot_be_read(data: bytes) -> None:
    with pytest.raises(UnreadableMessage):
        unpack_agent(data)


def test_a_pack_inside_a_pack_cannot_be_read() -> None:
    inner = pack([agent_frames.encode(frame) for frame in FRAMES])
    with pytest.raises(UnreadableMessage):
        unpack_agent(pack([inner, inner]))
