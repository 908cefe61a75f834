"""What a runner asks of its host, message by message: runners that a test has written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
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
        "say(CacheFetch(1, 'uv-1', ('uv-',)))", TELL,
        "say(CacheBegin(2, 'uv-1')); say(ArtifactData(2, b'tar')); say(ArtifactEnd(2))", TELL,
        "say(CacheFetch(3, 'uv-1'))", TELL, TELL,
        "say(CacheFetch(4, 'uv-2', ('none-', 'uv-')))", TELL, TELL,
    )  # fmt: skip
    assert answers == [
        "Reply(request=1, error='', value='')",
        "Reply(request=2, error='', value='')",
        "ArtifactData(request=3, data=b'tar')",
        "Reply(request=3, error='', value='uv-1')",
        "ArtifactData(request=4, data=b'tar')",
        "Reply(request=4, error='', value='uv-1')",
    ]


async def test_a_cache_that_cannot_be_kept_or_read_is_an_answer_and_the_job_goes_on(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks(key: str, restore: tuple[str, ...]) -> tuple[str, AsyncIterator[bytes]]:
        async def data() -> AsyncIterator[bytes]:
            yield b"half"
            raise KiciError("the cache arrived damaged")

        return key, data()

    async def full(key: str, data: AsyncIterator[bytes]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jobs.sink, "cache_fetch", breaks)
    monkeypatch.setattr(jobs.sink, "cache_save", full)
    answers = await heard(
        jobs,
        "say(CacheFetch(1, 'a'))", TELL, TELL,
        "say(CacheBegin(2, 'a')); say(ArtifactData(2, b'x')); say(ArtifactEnd(2))", TELL,
        "say(CacheBegin(3, ' ')); say(ArtifactData(3, b'x')); say(ArtifactEnd(3))", TELL,
    )  # fmt: skip
    assert answers[1] == "Reply(request=1, error='the cache arrived damaged', value='')"
    assert "No space left" in answers[2]
    assert "cannot be the key of a cache" in answers[3]


async def test_of_an_upload_that_breaks_off_nothing_is_kept_and_the_next_one_is(jobs: Jobs) -> None:
    answers = await heard(
        jobs,
        "say(CacheBegin(1, 'a')); say(ArtifactData(1, b'half')); say(ArtifactEnd(1, True))", TELL,
        "say(ArtifactBegin(2, 'a')); say(ArtifactData(2, b'half')); say(ArtifactEnd(2, True))", TELL,
        "say(CacheBegin(3, 'a')); say(ArtifactData(3, b'whole')); say(ArtifactEnd(3))", TELL,
    )  # fmt: skip
    assert "not sent to its end" in answers[0]
    assert "not sent to its end" in answers[1]
    assert answers[2] == "Reply(request=3, error='', value='')"
    assert jobs.sink.caches == {"a": b"whole"}
    assert jobs.sink.artifacts == {}


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
