from __future__ import annotations

import io

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from kici.orchestrator.logs import compacted
from kici.orchestrator.logs.compacted import DamagedLog, Packer, read_index, read_lines
from kici.orchestrator.objects.obstore_objects import ObstoreObjects

BIG = 10**9


def pack(lines: list[bytes]) -> bytes:
    packer = Packer()
    return b"".join([packer.add(lines[at : at + 7]) for at in range(0, len(lines), 7)]) + packer.finish()


async def store(data: bytes) -> ObstoreObjects:
    objects = ObstoreObjects(MemoryStore())
    await objects.put("log", data)
    return objects


@given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line), max_size=60), st.data())
@settings(max_examples=60, deadline=None)
async def test_any_part_of_any_log_comes_back(lines: list[bytes], data: st.DataObject) -> None:
    before, compacted.FRAME_BYTES = compacted.FRAME_BYTES, 100
    try:
        objects = await store(pack(lines))
    finally:
        compacted.FRAME_BYTES = before
    index = await read_index(objects, "log")
    assert (index.lines, index.size) == (len(lines), sum(len(line) + 1 for line in lines))
    first = data.draw(st.integers(0, len(lines) + 2))
    end = data.draw(st.integers(first, len(lines) + 5))
    assert await read_lines(objects, "log", index, first, end, max_bytes=BIG) == lines[first:end]


def test_common_programs_can_read_it() -> None:
    lines = [b"%d %s" % (number, b"x" * 90) for number in range(10_000)]
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(pack(lines)), read_across_frames=True)
    assert reader.read() == b"".join(line + b"\n" for line in lines)


async def test_a_part_that_is_too_large_is_cut_after_a_line() -> None:
    objects = await store(pack([b"x" * 100] * 50))
    index = await read_index(objects, "log")
    assert len(await read_lines(objects, "log", index, 0, 50, max_bytes=1010)) == 10
    assert len(await read_lines(objects, "log", index, 0, 50, max_bytes=1)) == 1


@pytest.mark.parametrize("data", [b"", b"short", b"x" * 100_000, pack([b"a"])[:-1], pack([b"a"])[:-30] + b"\xff" * 30])
async def test_what_is_damaged_is_told_as_such(data: bytes) -> None:
    objects = await store(data)
    with pytest.raises(DamagedLog):
        index = await read_index(objects, "log")
        await read_lines(objects, "log", index, 0, 1, max_bytes=BIG)
