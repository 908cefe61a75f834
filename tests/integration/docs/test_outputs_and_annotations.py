"""The example of the page on what steps tell compiles, and what the page says of limits is so."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from kici.agent import handed_over
from kici.compiler.compile import compile_directory
from kici.orchestrator.api import emit
from kici.orchestrator.caches.entries import Limits
from kici.orchestrator.pipeline.emitted import MAX_CHAIN_DEPTH
from kici.orchestrator.secrets import job_outputs
from kici.wire import agent

PAGE = (Path(__file__).parents[3] / "docs/user/outputs-and-annotations.md").read_text()
EXAMPLE = re.compile(r"^```python\n# (?P<path>\.kici/\S+\.py)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_example_compiles_without_warnings(tmp_path: Path) -> None:
    found = list(EXAMPLE.finditer(PAGE))
    assert len(found) == PAGE.count("```python") == 1
    path = tmp_path / found[0]["path"]
    path.parent.mkdir(parents=True)
    path.write_text(found[0]["text"])
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    compiled = compile_directory(tmp_path, strict=True)
    assert [str(problem) for problem in compiled.problems] == []


def test_the_limits_are_those_of_the_code() -> None:
    text = " ".join(PAGE.split())
    kib = 1024
    assert (
        agent.MAX_SUMMARY_BYTES
        == job_outputs.MAX_BYTES
        == handed_over.MAX_SECRET_BYTES
        == emit.MAX_PAYLOAD_BYTES
        == 64 * kib
    )
    assert f"up to {agent.MAX_ANNOTATIONS} annotations of {agent.MAX_ANNOTATION_CHARS:,} characters" in text
    assert f"A job has up to {job_outputs.MAX_PER_JOB}, of up to 64 KiB" in text
    assert f"emits up to {handed_over.MAX_EVENTS} events" in text
    assert MAX_CHAIN_DEPTH == 10
    assert Limits().quota_bytes == 5 * kib**3
    assert Limits().ttl.days == 7
