"""Many agents in one process that speak the real protocol and do no work.

`python -m tests.bench.light_agents URL TOKEN_FILE FIRST COUNT SLOTS STEPS` connects agents `FIRST` to
`FIRST + COUNT - 1` and says so in a line. A job is accepted; once that is acknowledged its steps begin and end, and the
job with them. With no steps it goes on for ever, and agents that lose their socket bring it to the next one.
Every line that is read is answered by one that tells what happened since the last: `{"ended": …, "refused": …}`; the
line `quit` ends the process.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from kici.wire.agent import (
    Ack,
    AgentFrame,
    AttemptRef,
    Dispatch,
    FromAgent,
    FromOrchestrator,
    Heartbeat,
    Hello,
    JobAccepted,
    JobStatusChanged,
    StepStatusChanged,
    Welcome,
    agent_frames,
    pack,
    unpack_orchestrator,
)
from kici.wire.version import PROTOCOL_MAX, PROTOCOL_MIN
from tests.bench.light_socket import LightSocket, connect

CONNECTING = 4
"""At once."""
TRIES = 20


class Tally:
    def __init__(self) -> None:
        self.ended = 0
        self.refused: list[str] = []


class LightAgent:
    def __init__(self, name: str, token: str, slots: int, tally: Tally, *, steps: int = 1) -> None:
        self.name = name
        self._token = token
        self._slots = slots
        self._tally = tally
        self._steps = steps
        self._held: dict[str, int] = {}
        self._seq = 0
        self._accepted: dict[int, Dispatch] = {}
        self._ending: set[int] = set()
        self._socket: LightSocket | None = None
        self._unsent: list[bytes] = []
        self._welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()

    async def run(self, url: str, connected: asyncio.Event, gate: asyncio.Semaphore) -> None:
        async with gate:
            self._socket, welcome = await self._connect(url)
        connected.set()
        number = 0
        while True:
            await asyncio.wait([self._socket.closed], timeout=welcome.heartbeat_s)
            number += 1
            if not self._socket.closed.done():
                self._say([(0, Heartbeat(number))])
                self._send()
            elif self._steps:
                raise ConnectionError(f"{self.name} was sent away: {self._socket.closed.result()}")
            else:
                async with gate:
                    self._socket, welcome = await self._connect(url)

    async def _connect(self, url: str) -> tuple[LightSocket, Welcome]:
        for _ in range(TRIES):
            self._welcome = asyncio.get_running_loop().create_future()
            try:
                self._socket = await connect(url, self._on_message, self._send)
            except OSError:
                await asyncio.sleep(0.2)
                continue
            hello = Hello(
                agent_id=self.name,
                boot_id=self.name,
                token=self._token,
                version="bench",
                protocol_min=PROTOCOL_MIN,
                protocol_max=PROTOCOL_MAX,
                labels=("kici:os:linux",),
                slots=self._slots,
                clock_ms=_now_ms(),
                attempts=tuple(AttemptRef(*one) for one in self._held.items()),
            )
            self._say([(0, hello)])
            self._send()
            ends: list[asyncio.Future[Any]] = [self._welcome, self._socket.closed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._welcome.done():
                return self._socket, self._welcome.result()
            await asyncio.sleep(0.2)
        raise ConnectionError(f"{self.name} was not let in: {self._socket and self._socket.closed.result()}")

    def _say(self, frames: list[tuple[int, FromAgent]]) -> None:
        self._unsent += [agent_frames.encode(AgentFrame(seq, body)) for seq, body in frames]

    def _send(self) -> None:
        if self._unsent and self._socket:
            self._socket.send([pack(self._unsent)])
            self._unsent = []

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _on_message(self, data: memoryview) -> None:
        for frame in unpack_orchestrator(data):
            self._hear(frame.body)

    def _hear(self, body: FromOrchestrator) -> None:
        match body:
            case Dispatch():
                seq = self._next()
                self._accepted[seq] = body
                self._say([(seq, JobAccepted(body.job_id, body.attempt))])
            case Ack():
                for seq in body.seqs:
                    self._acknowledged(seq)
                for _, reason in body.refused:
                    self._tally.refused.append(reason)
            case Welcome():
                self._welcome.set_result(body)

    def _acknowledged(self, seq: int) -> None:
        job = self._accepted.pop(seq, None)
        if job is not None:
            if self._steps:
                self._work(job)
            else:
                self._held[job.job_id] = job.attempt
        elif seq in self._ending:
            self._ending.discard(seq)
            self._tally.ended += 1

    def _work(self, job: Dispatch) -> None:
        now = _now_ms()
        for index in range(self._steps):
            begun = StepStatusChanged(job.job_id, job.attempt, index, "run", "running", now)
            done = StepStatusChanged(
                job.job_id, job.attempt, index, "run", "success", now, started_at_ms=now, exit_code=0
            )
            self._say([(self._next(), begun), (self._next(), done)])
        last = self._next()
        self._ending.add(last)
        self._say([(last, JobStatusChanged(job.job_id, job.attempt, "success", now))])


def _now_ms() -> int:
    return int(time.time() * 1000)


async def main(url: str, token_file: str, first: int, count: int, slots: int, steps: int) -> None:
    token = Path(token_file).read_text().strip()
    tally = Tally()
    gate = asyncio.Semaphore(CONNECTING)
    connected = [asyncio.Event() for _ in range(count)]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(
                LightAgent(f"light-{first + place}", token, slots, tally, steps=steps).run(url, connected[place], gate)
            )
            for place in range(count)
        ]
        for one in connected:
            await one.wait()
        print("connected", flush=True)
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while (line := await lines.readline()) and line != b"quit\n":
            print(json.dumps({"ended": tally.ended, "refused": tally.refused}), flush=True)
            tally.ended, tally.refused = 0, []
        for task in tasks:
            task.cancel()


if __name__ == "__main__":
    address, file, *numbers = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(address, file, *map(int, numbers)))
