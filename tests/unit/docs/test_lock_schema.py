"""The JSON Schema in the docs is the one of the structs that read the file."""

from __future__ import annotations

import json
from pathlib import Path

from kici.engine import lockfile

FILE = Path(__file__).resolve().parents[3] / "docs" / "user" / "kici.lock.schema.json"


def test_the_published_schema_is_the_one_of_the_structs() -> None:
    """Write it anew: kici.engine.lockfile.json_schema(), as JSON with sorted keys and two blanks."""
    assert json.loads(FILE.read_text()) == json.loads(json.dumps(lockfile.json_schema()))
