"""Reading bodies: JSON as JSON, with one error for everything that is none."""

from __future__ import annotations

import codecs
import re
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec

from kici.forges.contract import Body, Headers, Unreadable

JSON: Final = "application/json"
FORM: Final = "application/x-www-form-urlencoded"

_UTF8_PIECE = 1 << 20
_PATH = re.compile(r"^\$?\.?")

T = TypeVar("T")

any_json: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
checked_json: msgspec.json.Decoder[msgspec.Raw] = msgspec.json.Decoder(msgspec.Raw)
"""Proves that a body is JSON and builds nothing."""


def content_type(headers: Headers) -> str:
    """Without parameters, in lower case."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def decode(decoder: msgspec.json.Decoder[T], body: Body) -> T:
    """Raises `Unreadable`, with the place of the error."""
    check_utf8(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise Unreadable(f"the payload lacks what this forge sends: {error}") from None
    except msgspec.DecodeError as error:
        raise Unreadable(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise Unreadable("the body is not JSON that can be read: it is nested too deeply") from None


def check_utf8(body: Body) -> None:
    """The JSON decoder does not look into strings that it skips; whoever decodes all of it later would fail on them."""
    try:
        if len(body) <= _UTF8_PIECE:
            str(body, "utf-8")
            return
        decoder = codecs.getincrementaldecoder("utf-8")()
        with memoryview(body) as view:
            for start in range(0, len(view), _UTF8_PIECE):
                decoder.decode(view[start : start + _UTF8_PIECE])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise Unreadable(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None


def form(body: Body) -> dict[str, str]:
    """Of a name given twice the last value counts."""
    try:
        return dict(parse_qsl(bytes(body).decode("utf-8"), keep_blank_values=True, max_num_fields=10_000))
    except ValueError:
        raise Unreadable("the body is not a form that can be read") from None


def at_path(payload: Any, path: str) -> str | None:
    """Text or number at `a.b.c` (or `$.a.b.c`); None if there is none."""
    for key in _PATH.sub("", path, count=1).split("."):
        if not isinstance(payload, dict) or key not in payload:
            return None
        payload = payload[key]
    if isinstance(payload, bool) or not isinstance(payload, (str, int, float)):
        return None
    return str(payload)
