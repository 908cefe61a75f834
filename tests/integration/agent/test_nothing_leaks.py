"""No secret of a job leaves the agent: not in log bytes, outputs, annotations, summaries or errors, in no shape."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kici.agent.job_api import JobApi
from kici.agent.masking import Masker, Secrets
from kici.agent.outbox import Outbox
from kici.agent.reporter import Reporter
from kici.wire.agent import AttemptRef, Checkout, Dispatch, LogChunk
from kici.wire.runner import StepEnded
from tests.support.leaks import SHAPES, reveals

DISPATCH = Dispatch("r", "j", 1, "ci", "build", "build", Checkout("", "", ""), "", "kjt_1")
PLAIN = "abcXYZ019"
ODD = "'\"\\$`&<>%+/=: é€漢"
values = st.one_of(
    st.text(PLAIN + ODD, min_size=6, max_size=40),
    st.lists(st.text(PLAIN + ODD, min_size=6, max_size=70), min_size=2, max_size=4).map("\n".join),
    st.text(PLAIN, min_size=60, max_size=200),
).filter(lambda value: len(value.strip()) >= 6)
placed = st.tuples(st.sampled_from(["", " ", "x", "password=", "\n"]), st.sampled_from(sorted(SHAPES)))


async def told(
    secrets: Secrets, text: str, borders: Sequence[int], late: Sequence[str], limit: int = 1_000_000
) -> bytes:
    """Everything that leaves the agent about a step which writes, remarks, returns and fails with `text`."""
    outbox = Outbox()
    reporter = Reporter(
        AttemptRef("j", 1), outbox, secrets, JobApi("http://127.0.0.1:9", DISPATCH), log_limit_bytes=limit
    )
    for value in late:  # `ctx.mask` and secret outputs
        reporter.mask(value)
    await reporter.step_started(0, 1)
    data = text.encode()
    places = [0, *sorted(border % (len(data) + 1) for border in borders), len(data)]
    for start, end in itertools.pairwise(places):
        await reporter.output(0, data[start:end])
    reporter.annotated(0, "warning", text, text, 3)
    reporter.summarized(0, text)
    await reporter.step_ended(StepEnded(0, "failed", error=text, attempt=1, final=False))
    await reporter.step_ended(StepEnded(0, "failed", error=text))
    outputs = secrets.mask_all({text: [text, {"deep": text}]})
    waiting = len(outbox._statuses) + sum(len(one.waiting) for one in outbox._streams.values())
    found = [msgspec.json.encode(outputs), repr(secrets).encode()]
    found += [piece async for piece in _bodies(outbox, waiting)]
    return b"\n".join(found)


async def _bodies(outbox: Outbox, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        body = (await outbox.next()).body
        if isinstance(body, LogChunk):
            yield zstandard.ZstdDecompressor().decompress(body.data, 10_000_000)
        else:
            yield msgspec.msgpack.encode(body)


@given(
    st.lists(st.tuples(values, placed), min_size=1, max_size=3), st.lists(st.integers(0, 2_000), max_size=6), st.data()
)
@settings(max_examples=60, deadline=None)
async def test_no_secret_leaves_in_any_shape_and_without_masking_every_one_is_found(
    drawn: list[tuple[str, tuple[str, str]]], borders: list[int], data: st.DataObject
) -> None:
    text = "".join(f"{before}{SHAPES[shape](value)} end\n" for value, (before, shape) in drawn)
    given_with_job = data.draw(st.integers(0, len(drawn)))
    at_once = [value for value, _ in drawn[:given_with_job]]
    late = [value for value, _ in drawn[given_with_job:]]
    hidden = await told(Secrets(at_once), text, borders, late)
    control = await told(Secrets(), text, borders, [])
    for value, _ in drawn:
        assert not reveals(hidden, value)
        assert reveals(control, value)


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("value", ["p@ss'w\"o\\rd$1 é&<", "line-one'x\nline-two\"y\n", "k3y" * 40])
async def test_each_shape_is_hidden_and_found_without_masking(shape: str, value: str) -> None:
    text = f"before {SHAPES[shape](value)} after"
    assert reveals(text.encode(), value)
    assert not reveals(await told(Secrets([value]), text, [7, 20], []), value)


@pytest.mark.parametrize(
    "value", ["hunter two", "it's $HOME", 'a"b`c\\d', "tab\there", "ünï cödé", "a;b|c&d(e)<f>", "~x=~y#z,{w}^v"]
)
@pytest.mark.parametrize(
    "script", ['printf %q "$1"', 'set -x; : "$1"', "declare -p 1 2>&1; x=$1; declare -p x", 'echo -n "$1" | base64']
)
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_what_bash_makes_of_a_value_is_hidden(value: str, script: str, locale: str) -> None:
    bash = shutil.which("bash")
    assert bash
    done = subprocess.run(
        [bash, "-c", script, "bash", value],
        capture_output=True,
        check=False,
        env={"PATH": os.environ["PATH"], "LC_ALL": locale},
    )
    masker = Masker([value])
    said = masker.feed(done.stdout + done.stderr) + masker.flush()
    assert b"***" in said
    words = [word for word in ("hunter", "HOME", "here", "cödé", "{w}^v") if word in value]
    assert not any(word.encode() in said for word in words)


async def test_a_secret_whose_forms_overlap_another_s_is_hidden_with_its_rest() -> None:
    """The longest match alone would leave the end of the other one."""
    said = await told(Secrets(["abcdefgh", "efghijkl", "cdef"]), "abcdefghijkl cdefghijkl", [5], [])
    assert b"ijkl" not in said
    assert b"ab***" not in said


async def test_the_head_and_the_tail_of_a_log_that_is_too_long_are_hidden_as_well() -> None:
    said = await told(Secrets(["tok-9f8e7d6c"]), "is tok-9f8e7d6c\n" * 200, [1_000], [], limit=300)
    assert b"TRUNCATED" in said
    assert b"9f8e7d6c" not in said
