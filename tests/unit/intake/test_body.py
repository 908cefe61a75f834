from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from litestar.types import HTTPReceiveMessage

from kici.orchestrator.errors import Unavailable
from kici.orchestrator.intake import body as bodies
from kici.orchestrator.intake.body import Body, Limits, Receive, SenderLeft
from kici.orchestrator.intake.errors import BodyTooLarge, Busy
from kici.orchestrator.intake.inflight import InflightBytes

LIMITS = Limits(max_bytes=1000, spool_above=100, spool_directory=None)


def sender(pieces: Sequence[bytes], *, leaves: bool = False) -> Receive:
    messages: list[HTTPReceiveMessage] = [
        {"type": "http.request", "body": piece, "more_body": leaves or number < len(pieces) - 1}
        for number, piece in enumerate(pieces)
    ]
    if leaves:
        messages.append({"type": "http.disconnect"})

    async def receive() -> HTTPReceiveMessage:
        return messages.pop(0)

    return receive


async def read(pieces: Sequence[bytes], inflight: InflightBytes | None = None, limits: Limits = LIMITS) -> Body:
    inflight = inflight or InflightBytes(10_000)
    with inflight.reserve() as reserved:
        return await bodies.read(sender(pieces), limits, reserved)


@pytest.mark.parametrize("pieces", [[b""], [b"a" * 100], [b"a" * 50, b"b" * 50], [b"a", b"", b"b"]])
async def test_a_small_body_stays_in_memory(pieces: list[bytes]) -> None:
    with await read(pieces) as body:
        assert not body.spooled
        assert body.data == b"".join(pieces)


@pytest.mark.parametrize("pieces", [[b"a" * 101], [b"a" * 60, b"b" * 60], [b"x"] * 1000])
async def test_a_large_body_lies_in_a_file_without_a_name(tmp_path: Path, pieces: list[bytes]) -> None:
    limits = Limits(max_bytes=1000, spool_above=100, spool_directory=tmp_path)
    with await read(pieces, limits=limits) as body:
        assert body.spooled
        assert b"".join(map(bytes, body.pieces())) == b"".join(pieces) == bytes(body.data)
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("pieces", [[b"a" * 1001], [b"a" * 600, b"b" * 401], [b"a"] * 1001])
async def test_one_byte_too_many_is_refused_wherever_it_comes(pieces: list[bytes]) -> None:
    inflight = InflightBytes(10_000)
    with pytest.raises(BodyTooLarge, match="1000 bytes"):
        await read(pieces, inflight)
    assert inflight.used == 0


async def test_a_full_house_is_told_at_once_and_places_are_given_back() -> None:
    inflight = InflightBytes(150)
    with inflight.reserve() as held:
        with pytest.raises(Busy):
            held.grow(151)
        await bodies.read(sender([b"a" * 90]), LIMITS, held)
        assert inflight.used == 90
        with pytest.raises(Busy):
            await read([b"a" * 50, b"b" * 50], inflight)
        assert inflight.used == 90
    assert inflight.used == 0
    (await read([b"a" * 150], inflight)).close()


async def test_a_sender_that_hangs_up_leaves_nothing(tmp_path: Path) -> None:
    limits = Limits(max_bytes=1000, spool_above=100, spool_directory=tmp_path)
    inflight = InflightBytes(10_000)
    with pytest.raises(SenderLeft), inflight.reserve() as reserved:
        await bodies.read(sender([b"a" * 400, b"b" * 400], leaves=True), limits, reserved)
    assert inflight.used == 0
    assert os.listdir(tmp_path) == []


async def test_a_full_disk_is_no_loss_but_a_later(tmp_path: Path) -> None:
    limits = Limits(max_bytes=1000, spool_above=100, spool_directory=tmp_path / "none")
    with pytest.raises(Unavailable, match=os.strerror(errno.ENOENT)):
        await read([b"a" * 500], limits=limits)
