"""Which byte sequences give a secret away: itself, and what programs make of it when they print it.

- each line of a value with several;
- base64 (also the URL-safe alphabet) of a text that holds the value at any offset, and of the value alone as programs
  wrap it;
- hexadecimal, plain or in pairs;
- escaped for URLs, JSON (also JSON inside JSON), HTML;
- quoted for a shell: inside quotation marks of either kind, by backslashes, and as `set -x` and `printf %q` do.

Values shorter than `MIN_SECRET_BYTES` are not hidden, nor lines shorter than `MIN_LINE_BYTES`: half of every log would
go with them.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Iterator
from urllib.parse import quote, quote_plus

from kici.wire.runner import MIN_SECRET_BYTES

MIN_LINE_BYTES = 4
"""Of a line of a value with several: `end`, `fi` and `---` are no secrets."""
_MIN_PIECE = 8
"""Of a piece of wrapped base64: shorter ones occur by chance."""
_WRAPS = (64, 76)
"""Columns at which PEM writers and `base64` break lines."""
_STRUCTURE = b"{}[]()<>,;:\"' \t"
"""A line made of nothing else is no secret, but part of many logs."""
_SPECIAL_IN_SHELL = re.compile(r"""[ !"$&'()*,;<>?\[\\\]^`{|}]|^#|(?:^|(?<=[=:]))~""")
_C_ESCAPES = {"\a": "\\a", "\b": "\\b", "\x1b": "\\E", "\f": "\\f", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\n": "\\n"}


def is_too_short(value: str) -> bool:
    return len(value.encode(errors="replace")) < MIN_SECRET_BYTES


def patterns(value: str) -> set[bytes]:
    """Every byte sequence that is hidden because of `value`. None contains a newline."""
    if is_too_short(value):
        return set()
    found: set[bytes] = set()
    for text in {value, value.strip()} - {""}:
        found.update(_forms(text))
    lines = value.replace("\r", "\n").split("\n")
    for line in lines if len(lines) > 1 else ():
        stripped = line.strip()
        raw = stripped.encode(errors="replace")
        if len(raw) >= MIN_LINE_BYTES and raw.strip(_STRUCTURE):
            found.update(escaped.encode(errors="replace") for escaped in _escaped(stripped))
            found.update(_inside_base64(raw))
    return {pattern for pattern in found if len(pattern) >= MIN_SECRET_BYTES and b"\n" not in pattern}


def _forms(text: str) -> Iterator[bytes]:
    raw = text.encode(errors="replace")
    for escaped in _escaped(text):
        yield escaped.encode(errors="replace")
    yield from _hexadecimal(raw)
    yield from _base64(raw)


def _escaped(text: str) -> Iterator[str]:
    yield text
    for encoded in (quote(text, safe="", errors="replace"), quote_plus(text, errors="replace"), quote(text)):
        yield encoded
        yield _lower_percent(encoded)
    for ascii_only in (True, False):
        inside = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        yield inside
        yield inside.replace("/", "\\/")
        yield json.dumps(inside, ensure_ascii=ascii_only)[1:-1]
    yield html.escape(text, quote=False)
    yield html.escape(text)
    yield from _in_shell(text)


def _in_shell(text: str) -> Iterator[str]:
    yield text.replace("'", "'\\''")  # bash, of what stands between single quotation marks
    yield text.replace("'", "'\"'\"'")  # Python's shlex
    yield re.sub(r'([$`"\\!])', r"\\\1", text)  # between double ones
    yield _SPECIAL_IN_SHELL.sub(r"\\\g<0>", text)
    for plain in (str.isprintable, _is_ascii):
        yield "".join(_in_dollar_quotes(text, plain))


def _is_ascii(character: str) -> bool:
    return " " <= character <= "~"


def _in_dollar_quotes(text: str, is_plain: Callable[[str], bool]) -> Iterator[str]:
    """Bash's `$'…'`, which it prints where there is something that a terminal would not show."""
    for character in text:
        if character in _C_ESCAPES:
            yield _C_ESCAPES[character]
        elif character in "'\\":
            yield "\\" + character
        elif is_plain(character):
            yield character
        else:
            yield "".join(f"\\{byte:03o}" for byte in character.encode(errors="replace"))


def _lower_percent(encoded: str) -> str:
    head, *rest = encoded.split("%")
    return head + "".join(f"%{part[:2].lower()}{part[2:]}" for part in rest)


def _hexadecimal(raw: bytes) -> Iterator[bytes]:
    plain = raw.hex().encode()
    yield from (plain, plain.upper())
    for between in (" ", ":", "\\x"):
        pairs = [f"{byte:02x}" for byte in raw]
        yield between.join(pairs).encode()
        yield between.join(pair.upper() for pair in pairs).encode()


def _base64(raw: bytes) -> Iterator[bytes]:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(raw)
        yield from (whole, whole.rstrip(b"="))
        for columns in _WRAPS:
            pieces = (whole[start : start + columns] for start in range(0, len(whole), columns))
            yield from (piece for piece in pieces if len(piece) >= _MIN_PIECE)
    yield from _inside_base64(raw)


def _inside_base64(raw: bytes) -> Iterator[bytes]:
    """What it is in the base64 of any longer text."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for offset in range(3):
            # Only the characters that are made of the value's bits alone.
            first, end = -(-8 * offset // 6), 8 * (offset + len(raw)) // 6
            core = encode(bytes(offset) + raw)[first:end]
            if len(core) > MIN_SECRET_BYTES:
                yield core
