"""Both ends of the socket between a runner and its host."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from kici.runner.link import HostLink, Link
from kici.wire.codec import UnreadableMessage
from kici.wire.runner import MAX_BYTES, Cancel, Mask, Output, Ping, Pipe, Pong, Reply, from_runner

SECONDS = 20


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
async def ends(sockets: tuple[socket.socket, socket.socket]) -> AsyncIterator[tuple[HostLink, Link]]:
    host, runner = HostLink(sockets[0]), Link(sockets[1])
    async with asyncio.timeout(SECONDS):
        yield host, runner
    host.close()
    runner.close()


async def test_small_and_large_messages_arrive_whole_and_in_their_order(ends: tuple[HostLink, Link]) -> None:
    host, runner = ends
    messages = [Output(number, os.urandom(size)) for number, size in enumerate((0, 1, 65_000, 65_536, 262_144) * 20)]

    async def post() -> None:
        for message in messages:
            await runner.post(message)

    posting = asyncio.create_task(post())
    assert [await host.read() for _ in messages] == messages
    await posting


async def test_messages_of_several_threads_stay_whole(ends: tuple[HostLink, Link]) -> None:
    host, runner = ends

    def send(index: int) -> None:
        for _ in range(20):
            runner.send(Output(index, bytes([index]) * 100_000))

    threads = [threading.Thread(target=send, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(80):
        message = await host.read()
        assert isinstance(message, Output)
        assert message.data == bytes([message.index]) * 100_000
    for thread in threads:
        thread.join()


async def test_a_message_larger_than_what_a_host_takes_is_not_sent_and_not_read(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    host, runner = HostLink(sockets[0]), Link(sockets[1])
    with pytest.raises(ValueError, match="over the limit"):
        runner.send(Mask("x" * MAX_BYTES))
    sockets[1].send((MAX_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(UnreadableMessage, match="over the limit"):
        await host.read()


async def test_what_a_host_sends_may_be_larger(ends: tuple[HostLink, Link]) -> None:
    host, runner = ends
    reply = Reply(1, value="x" * (MAX_BYTES + 1))
    posting = asyncio.create_task(host.post(reply))
    assert await runner.read() == reply
    await posting


@pytest.mark.parametrize("sent", [b"", b"\0\0", b"\0\0\0\x09half", b"\0\x0f\0\0half"])
async def test_a_runner_that_is_gone_within_a_message_has_said_nothing(
    sockets: tuple[socket.socket, socket.socket], sent: bytes
) -> None:
    host = HostLink(sockets[0])
    sockets[1].send(sent)
    sockets[1].close()
    assert await host.read() is None


async def test_one_that_is_gone_is_told_to_who_posts_and_not_to_who_pushes(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    host = HostLink(sockets[0])
    sockets[1].close()
    host.push(Cancel("too late"))
    with pytest.raises(OSError, match="pipe"):
        await host.post(Cancel("too late"))
    host.close()
    host.push(Cancel("even later"))


async def test_who_posts_waits_for_a_reader_that_does_not_read(ends: tuple[HostLink, Link]) -> None:
    host, runner = ends
    posting = asyncio.create_task(host.post(Reply(1, value="x" * MAX_BYTES)))
    await asyncio.sleep(0)
    host.push(Cancel("now"))
    await asyncio.sleep(0)
    assert not posting.done()
    assert isinstance(await runner.read(), Reply)
    await posting
    assert await runner.read() == Cancel("now")


async def test_who_reads_what_is_there_already_leaves_the_other_tasks_their_turns(ends: tuple[HostLink, Link]) -> None:
    host, runner = ends
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    for _ in range(5):
        runner.send(Output(0, bytes(30_000)))
    counting = asyncio.create_task(others())
    for _ in range(5):
        assert await host.read()
    counting.cancel()
    assert turns >= 2


# ── descriptors ──────────────────────────────────────────────────────────────────────────────────────────────────────


def pipe(said: bytes) -> int:
    """The end to read of a pipe into which something was said."""
    source, target = os.pipe()
    os.write(target, said)
    os.close(target)
    return source


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


async def test_each_pipe_comes_with_its_own_descriptor_whatever_is_sent_around_it(ends: tuple[HostLink, Link]) -> None:
    host, runner = ends
    large = Reply(0, value="x" * 1_000_000)  # the socket is full while the pipes are sent

    async def post() -> None:
        for number in range(30):
            host.push(Ping())
            await host.post(Pipe(number), pipe(str(number).encode()))
            host.push(large if number % 10 == 3 else Ping())

    before = len(os.listdir("/proc/self/fd"))
    posting = asyncio.create_task(post())
    found = {}
    for _ in range(90):
        message = await runner.read()
        if isinstance(message, Pipe):
            descriptor = runner.descriptor()
            assert not os.get_inheritable(descriptor)
            found[message.request] = os.read(descriptor, 10)
            os.close(descriptor)
    await posting
    assert found == {number: str(number).encode() for number in range(30)}
    assert len(os.listdir("/proc/self/fd")) == before


async def test_descriptors_that_did_not_go_are_closed_with_the_link(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    host = HostLink(sockets[0])
    host.push(Reply(1, value="x" * 10_000_000))
    source = pipe(b"x")
    posting = asyncio.create_task(host.post(Pipe(2), source))
    await asyncio.sleep(0)
    assert is_open(source)
    posting.cancel()
    await asyncio.wait([posting])
    host.close()
    assert not is_open(source)


async def test_what_a_runner_sends_along_does_not_reach_the_host(sockets: tuple[socket.socket, socket.socket]) -> None:
    host, said = HostLink(sockets[0]), from_runner.encode(Pong())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        source = pipe(b"")
        socket.send_fds(sockets[1], [len(said).to_bytes(4, "big") + said], [source])
        os.close(source)
        assert await host.read() == Pong()
    assert len(os.listdir("/proc/self/fd")) == before
    host.close()
