from __future__ import annotations

import json
from typing import Any

import pytest

from kici.engine import lockfile
from kici.engine.errors import LockFileError
from kici.engine.lockfile import LockFile, LockJob, LockStep, LockWorkflow, PushTrigger, Regex, SourceLocation

WORKFLOW = LockWorkflow(
    "ci",
    SourceLocation(".kici/workflows/ci.py", 3),
    "ci",
    "hash",
    (PushTrigger(("main", Regex("^v"))),),
    (LockJob("build", (LockStep("test", command="make test"),), ("linux",), matrix={"python": ("3.11",)}),),
)
LOCK = LockFile(1, "hash", {"workflows/ci.py": "0" * 64}, (WORKFLOW,))


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(lockfile.encode(LOCK)) | fields).encode()


def test_what_is_written_is_read_back() -> None:
    assert lockfile.decode(lockfile.encode(LOCK)) == LOCK


def test_the_bytes_are_stable_sorted_and_end_with_a_newline() -> None:
    data = lockfile.encode(LOCK)
    assert data == lockfile.encode(lockfile.decode(data))
    assert data.endswith(b"}\n")
    assert list(json.loads(data)) == sorted(json.loads(data))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b'{"schemaVersion": "1"}', "no numeric schemaVersion"),
        (b'{"schemaVersion": true}', "no numeric schemaVersion"),
        (b'{"schemaVersion": 17, "lockfileHash": "x"}', "written by the TypeScript kici"),
        (b'{"schemaVersion": 2}', "schemaVersion 2, this orchestrator reads up to 1"),
        (b'{"schemaVersion": 0}', "schemaVersion 0"),
        (changed(extra=1), "unknown field `extra`"),
        (changed(workflows=[{}]), r"\$\.workflows\[0\]"),
        (b" " * (lockfile.MAX_BYTES + 1), "5,000,001 bytes"),
    ],
)
def test_a_bad_lock_file_is_refused_with_the_way_out(data: bytes, problem: str) -> None:
    with pytest.raises(LockFileError, match=problem):
        lockfile.decode(data)


def test_a_workflow_has_at_most_500_jobs() -> None:
    job = json.loads(lockfile.encode(LOCK))["workflows"][0]["jobs"][0]
    workflow = json.loads(lockfile.encode(LOCK))["workflows"][0] | {"jobs": [job] * 501}
    with pytest.raises(LockFileError, match="501 jobs"):
        lockfile.decode(changed(workflows=[workflow]))


def test_the_published_schema_describes_the_lock_file() -> None:
    schema = lockfile.json_schema()
    assert set(schema["$defs"]["LockFile"]["properties"]) == {"schemaVersion", "contentHash", "files", "workflows"}
