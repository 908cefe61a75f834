from __future__ import annotations

from typing import Any

import pytest

import kici
from kici import DefinitionError, job

anything: Any = kici
only = job("a", runs_on="linux", steps=["true"])


def said(permissions: Any) -> dict[str, str] | None:
    found: dict[str, str] | None = anything.workflow("ci", jobs=[only], permissions=permissions).permissions
    return found


def test_what_is_not_named_is_none() -> None:
    assert said(None) is None
    assert said({}) == {}
    assert said({"caches": "read", "artifacts": "write", "events": "none"}) == {"caches": "read", "artifacts": "write"}
    assert said("read-all") == {"artifacts": "read", "caches": "read"}
    assert set(said("write-all") or ()) == {"artifacts", "caches", "events", "secret_outputs"}


@pytest.mark.parametrize(
    ("permissions", "complaint"),
    [
        ({"contents": "read"}, "'contents' is not there yet"),
        ({"id_token": "write"}, "'id_token' is not there yet"),
        ({"cache": "read"}, r"there is no 'cache' \(did you mean 'caches'\?\)"),
        ({"caches": "wirte"}, r"caches: there is no 'wirte' \(did you mean 'write'\?\)"),
        ({"events": "read"}, "events: there is no 'read'"),
        ({"caches": True}, "caches: there is no True"),
        ("all", "'all' are none: write"),
        (["caches"], "are none: write"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_write(permissions: Any, complaint: str) -> None:
    with pytest.raises(DefinitionError, match=complaint):
        said(permissions)
