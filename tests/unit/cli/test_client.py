from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.cli import client
from kici.cli.client import ClientError, parse_events

STREAM = 'event: log\ndata: {"lines": ["a \u2028 b\x85"]}\n\n: alive\n\nevent: end\ndata: {}\n\nevent: cut'.encode()


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("KICI_URL", "KICI_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KICI_CONFIG_DIR", str(tmp_path))
    return tmp_path / "config"


def test_without_anything_it_says_what_to_do() -> None:
    with pytest.raises(ClientError, match="`kici up`, or set KICI_URL and KICI_TOKEN"):
        client.configured()


def test_the_file_is_read_and_variables_win(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text('{"url": "http://one:1/", "token": "secret-1"}')
    assert client.configured().url == "http://one:1"
    monkeypatch.setenv("KICI_URL", "http://two:2")
    monkeypatch.setenv("KICI_TOKEN", "secret-2")
    assert client.configured().url == "http://two:2"
    assert "secret" not in repr(client.configured())


def test_a_token_is_not_shown_to_another_orchestrator(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text('{"url": "http://one:1", "token": "secret-1"}')
    monkeypatch.setenv("KICI_URL", "http://two:2")
    with pytest.raises(ClientError, match="set KICI_TOKEN, too"):
        client.configured()


@pytest.mark.parametrize("text", ["{", "[]", '"x"', "\udcff"])
def test_a_broken_file_is_told_as_such(config: Path, text: str) -> None:
    config.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ClientError, match="repair or remove it"):
        client.configured()


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://", "http://[::1"])
def test_what_is_no_url_is_told_as_such(url: str) -> None:
    with pytest.raises(ClientError, match=r"URL|reached"):
        client.Client(url, "t").get("/runs", dict)


def test_nobody_there() -> None:
    with pytest.raises(client.Unreachable, match=r"cannot be reached.*`kici up` starts one"):
        client.Client("http://127.0.0.1:1", "t").get("/runs", dict)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_events_come_whole_however_the_stream_is_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in pairwise(places)]
    assert list(parse_events(pieces)) == [("log", '{"lines": ["a \u2028 b\x85"]}'.encode()), ("end", b"{}")]
