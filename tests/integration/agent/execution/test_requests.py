"""What a runner asks of its host, message by message: runners that a test has written."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kici.agent.handed_over import MAX_SECRET_BYTES
from kici.errors import KiciError
from tests.integration.agent.execution.conftest import SECONDS, Jobs, lock_job
from tests.integration.agent.execution.impostor import Impostor

BEGIN = "say(StepStarted(0))"
END = "say(StepEnded(0, 'success')); say(JobEnded('success'))"
TELL = "say(Output(0, (repr(heard()) + chr(10)).encode()))"
"""Puts the host's answer into the log."""


def tell(answer: str) -> str:
    return f"say(Output(0, (repr({answer}) + chr(10)).encode()))"


async def heard(jobs: Jobs, *says: str) -> list[str]:
    """The host's answers to a runner that says this in its step; the job must end well."""
    jobs.sandbox = Impostor(BEGIN, *says, END)
    async with jobs.prepared() as execution, asyncio.timeout(SECONDS):
        ended = await execution.run(jobs.start(execution, lock_job("build", ["build"])), sink=jobs.sink)
    assert (ended.status, ended.error) == ("success", ""), ended
    return jobs.sink.text.splitlines()


@pytest.fixture
def jobs(directory: Path) -> Jobs:
    return Jobs(directory, Impostor())


async def test_a_cache_is_saved_and_found_by_its_key_and_by_a_prefix(jobs: Jobs) -> None:
    answers = await heard(
        jobs,
        tell("fetch(CacheFetch(1, 'uv-1', ('uv-',)))"),
        tell("send(CacheBegin(2, 'uv-1'), b'tar')"),
        tell("fetch(CacheFetch(3, 'uv-1'))"),
        tell("fetch(CacheFetch(4, 'uv-2', ('none-', 'uv-')))"),
    )
    assert answers == [
        "Reply(request=1, error='', value='')",
        "Reply(request=2, error='', value='')",
        "(b'tar', Reply(request=3, error='', value='uv-1'))",
        "(b'tar', Reply(request=4, error='', value='uv-1'))",
    ]


async def test_a_cache_that_cannot_be_kept_or_read_is_an_answer_and_the_job_goes_on(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks(key: str, restore: tuple[str, ...]) -> tuple[str, AsyncGenerator[bytes, None]]:
        async def data() -> AsyncGenerator[bytes, None]:
            yield b"half"
            raise KiciError("the cache arrived damaged")

        return key, data()

    async def full(key: str, data: AsyncIterator[bytes]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jobs.sink, "cache_fetch", breaks)
    monkeypatch.setattr(jobs.sink, "cache_save", full)
    answers = await heard(
        jobs,
        tell("fetch(CacheFetch(1, 'a'))"),
        tell("send(CacheBegin(2, 'a'), b'x')"),
        tell("send(CacheBegin(3, ' '), b'x')"),
    )
    assert answers[0] == "(b'half', Reply(request=1, error='the cache arrived damaged', value=''))"
    assert "No space left" in answers[1]
    assert "cannot be the key of a cache" in answers[2]


async def test_of_an_upload_that_breaks_off_nothing_is_kept_and_the_next_one_is(jobs: Jobs) -> None:
    answers = await heard(
        jobs,
        tell("send(CacheBegin(1, 'a'), b'half', True)"),
        tell("send(ArtifactBegin(2, 'a'), b'half', True)"),
        tell("send(CacheBegin(3, 'a'), b'whole')"),
    )
    assert "not sent to its end" in answers[0]
    assert "not sent to its end" in answers[1]
    assert answers[2] == "Reply(request=3, error='', value='')"
    assert jobs.sink.caches == {"a": b"whole"}
    assert jobs.sink.artifacts == {}


async def test_what_is_refused_or_there_already_is_not_asked_for(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    async def there(key: str, data: AsyncIterator[bytes]) -> None:
        raise KiciError("there is an entry of that key already")

    monkeypatch.setattr(jobs.sink, "cache_save", there)
    answers = await heard(jobs, "say(CacheBegin(1, 'a'))", TELL, "say(ArtifactBegin(2, '/'))", TELL)
    assert "already" in answers[0]
    assert "cannot be the name of an artifact" in answers[1]


async def test_a_slow_upload_holds_up_neither_another_one_nor_the_log(jobs: Jobs) -> None:
    answers = await heard(
        jobs,
        "say(CacheBegin(1, 'slow')); heard(); slow = pipes.pop()",
        tell("send(CacheBegin(2, 'fast'), b'whole')"),
        "os.write(slow, b'late'); os.close(slow); say(ArtifactEnd(1))", TELL,
    )  # fmt: skip
    assert [answer[:15] for answer in answers] == ["Reply(request=2", "Reply(request=1"]
    assert jobs.sink.caches == {"slow": b"late", "fast": b"whole"}


async def test_the_end_of_an_upload_is_what_the_runner_says_also_where_a_process_keeps_its_pipe(jobs: Jobs) -> None:
    answers = await heard(
        jobs,
        "say(CacheBegin(1, 'a')); heard(); os.write(pipes[0], b'whole'); say(ArtifactEnd(1))", TELL,
        "say(CacheBegin(2, 'b')); heard(); os.write(pipes[1], b'half'); say(ArtifactEnd(2, True))", TELL,
    )  # fmt: skip
    assert answers[0] == "Reply(request=1, error='', value='')"
    assert "not sent to its end" in answers[1]
    assert jobs.sink.caches == {"a": b"whole"}


async def test_a_job_may_leave_any_pipe_as_it_is_and_the_host_keeps_nothing_of_it_open(jobs: Jobs) -> None:
    jobs.sink.caches["large"] = bytes(4_000_000)
    before = os.listdir("/proc/self/fd")
    await heard(
        jobs,
        "for n in range(1, 11):\n    say(ArtifactBegin(n, f'a{n}')); heard()",
        "for n in range(11, 21):\n    say(CacheFetch(n, 'large')); heard()",
    )
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert jobs.sink.artifacts == {}


async def test_what_is_not_read_to_its_end_is_no_error_of_the_host(jobs: Jobs) -> None:
    jobs.sink.caches["large"] = bytes(4_000_000)
    answers = await heard(jobs, "say(CacheFetch(1, 'large')); heard(); os.close(pipes.pop())", TELL)
    assert answers == ["Reply(request=1, error='', value='large')"]


async def test_a_secret_output_is_masked_before_it_is_kept_and_never_more_than_twenty(jobs: Jobs) -> None:
    answers = await heard(
        jobs,
        "for n in range(21):\n    say(SecretOutput(n + 1, f'S{n}', 'hunter2')); answer = heard()\n"
        "say(Output(0, repr(answer).encode() + b'\\n'))",
        "say(SecretOutput(50, 'no name', 'swordfish'))", TELL,
        f"say(SecretOutput(51, 'LONG', 'x' * {MAX_SECRET_BYTES + 1}))", TELL,
    )  # fmt: skip
    assert "up to 20" in answers[0]
    assert "its name is to be" in answers[1]
    assert "65,537 bytes" in answers[2]
    assert len(jobs.sink.secrets) == 20
    assert {"hunter2", "swordfish"} == set(jobs.sink.masked)
    assert "hunter2" not in jobs.sink.text


async def test_an_event_is_answered_with_its_id_and_one_that_is_too_large_with_why(jobs: Jobs) -> None:
    answers = await heard(
        jobs,
        "say(Emit(1, 'built', {'n': 1}, 'k'))", TELL,
        "say(Emit(2, 'built', {'n': 1}, 'k'))", TELL,
        "say(Emit(3, 'built', 'x' * 70000, 'l'))", TELL,
    )  # fmt: skip
    assert answers[:2] == ["Reply(request=1, error='', value='event-0')", "Reply(request=2, error='', value='event-0')"]
    assert "the limit is 65,536" in answers[2]
    assert jobs.sink.events == {"k": ("built", {"n": 1})}


async def test_remarks_belong_to_the_step_that_runs(jobs: Jobs) -> None:
    await heard(jobs, "say(Annotated(0, 'warning', 'unused', 'a.py', 7)); say(Summarized(0, '# Done'))")
    assert jobs.sink.remarks == [(0, "warning", "unused", "a.py", 7)]
    assert jobs.sink.summaries == [(0, "# Done")]


@pytest.mark.parametrize(
    ("says", "status", "error"),
    [
        ("say(JobEnded('failed', 'enough (on_cancel hook failed: x)'))", "failed", "enough (on_cancel hook failed: x)"),
        ("say(JobEnded('failed', 'cancelled (cleanup hook failed)'))", "failed", "cancelled (cleanup hook failed)"),
        ("say(JobEnded('failed', \"step 'build' failed: too late\"))", "cancelled", "enough"),
        ("say(JobEnded('skipped'))", "cancelled", "enough"),
        ("say(JobEnded('success'))", "cancelled", "enough"),
    ],
)
async def test_a_cancelled_job_is_cancelled_whatever_its_runner_says_but_for_its_hooks(
    jobs: Any, says: str, status: str, error: str
) -> None:
    jobs.sandbox = Impostor(
        "say(Output(-1, b'ready'))", "assert heard().reason == 'enough'", f"say(StepEnded(0, 'skipped')); {says}"
    )
    async with jobs.prepared() as execution, asyncio.timeout(SECONDS):
        running = asyncio.create_task(
            execution.run(jobs.start(execution, lock_job("build", ["build"])), sink=jobs.sink)
        )
        await jobs.sink.until_logged("ready")
        execution.cancel("enough")
        ended = await running
    assert (ended.status, ended.error) == (status, error)
