"""Finds a secret in bytes by undoing what programs do to text; it knows nothing of how kici hides one."""

from __future__ import annotations

import base64
import binascii
import html
import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterator
from urllib.parse import quote, quote_plus, unquote, unquote_plus

SHAPES: dict[str, Callable[[str], str]] = {
    "raw": lambda value: value,
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64 behind one byte": lambda value: base64.b64encode(b"u" + value.encode() + b"!!").decode(),
    "base64 behind two bytes": lambda value: base64.b64encode(b"u:" + value.encode() + b"!!").decode(),
    "base64 for URLs": lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
    "URL": lambda value: quote(value, safe=""),
    "form": quote_plus,
    "URL in small letters": lambda value: re.sub("%..", lambda one: one.group().lower(), quote(value, safe="")),
    "JSON": lambda value: json.dumps({"a": value}),
    "JSON in Unicode": lambda value: json.dumps({"a": value}, ensure_ascii=False),
    "JSON inside JSON": lambda value: json.dumps({"a": json.dumps([value])}),
    "hexadecimal": lambda value: value.encode().hex(),
    "capital hexadecimal": lambda value: value.encode().hex().upper(),
    "hexadecimal pairs": lambda value: value.encode().hex(":"),
    "a word of the shell": shlex.quote,
    "single quotation marks": lambda value: "'" + value.replace("'", "'\\''") + "'",
    "HTML": html.escape,
}


def reveals(data: bytes, value: str) -> bool:
    """Whether a reader who knows these shapes finds the value: whole, or a line of it that is worth something."""
    lines = [line.strip() for line in re.split("[\r\n]", value)]
    wanted = [value.strip(), *(line for line in lines if len(line.encode()) >= 4)] if len(lines) > 1 else [value]
    needles = [one.encode() for one in wanted if one]
    return any(needle in text for text in _undone(data) for needle in needles)


def _undone(data: bytes) -> Iterator[bytes]:
    yield data
    text = data.decode(errors="replace")
    for undo in (unquote, unquote_plus, html.unescape, _json, lambda one: _json(_json(one)), _shell):
        yield undo(text).encode(errors="replace")
    yield _hexadecimal(re.sub("(?<=[0-9A-Fa-f]{2})[: ](?=[0-9A-Fa-f]{2})", "", text))
    for run in re.findall(rb"[A-Za-z0-9+/_-]{4,}", data):
        for start in range(4):
            yield _base64(run[start:])


def _json(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        try:
            return str(json.loads(f'"{found.group()}"'))
        except json.JSONDecodeError:
            return found.group()

    return re.sub(r"(\\u[0-9a-f]{4})+|\\.", one, text)


def _shell(text: str) -> str:
    return text.replace("'\"'\"'", "'").replace("'\\''", "'")


def _hexadecimal(text: str) -> bytes:
    found = bytearray()
    for run in re.findall("[0-9A-Fa-f]{2,}", text):
        for start, end in itertools.product((0, 1), (0, 1)):
            part = run[start : len(run) - end]
            if len(part) % 2 == 0:
                found += binascii.unhexlify(part) + b"\n"
    return bytes(found)


def _base64(run: bytes) -> bytes:
    plain = run.translate(bytes.maketrans(b"-_", b"+/"))
    whole = plain[: len(plain) - (len(plain) % 4 == 1)]
    return base64.b64decode(whole + b"=" * (-len(whole) % 4))
