"""Templates of `ctx.sh`: values become words of the shell, never syntax.

A value is single-quoted, which protects it wherever the shell reads plain words, and nowhere else: not inside quotes of
the template, comments, here-documents, backquotes or arithmetic. So the template is read as bash would read it, up to
each placeholder, and a placeholder in any other place is refused. What this reader does not fully understand makes it
refuse the placeholders that follow, never accept one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from msgspec import Struct

from kici.sdk.context import SH_OPTIONS
from kici.sdk.errors import CommandInvalid

_NAME = re.compile(r"\{([A-Za-z_]\w*)\}")
_BLANK = " \t\n"
_META = _BLANK + ";|&()<>"
_CASE = re.compile(r"(?<![\w$/.-])case(?![\w/.-])")
_PARAMETER = re.compile(r"[\w#$?!@*-]")
_EVALUATED = re.compile(
    r"\[\[(?:(?!\]\]).)*?\0(?:(?!\]\]).)*?\s-(?:eq|ne|lt|le|gt|ge)\s"
    r"|\[\[(?:(?!\]\]).)*?\s-(?:eq|ne|lt|le|gt|ge|v)\s(?:(?!\]\]).)*?\0"
    r"|\w\[[^\]\s]*\0"
    r"|\b(?:let|declare|typeset|local|unset|read|getopts|mapfile|readarray)\b(?:\\\n|[^;\n])*?\0"
    r"|-v\s+\0",
    re.DOTALL,
)
"""Where bash evaluates a word as arithmetic or as a name, and runs a `$(…)` in it although it is quoted."""
_HEREDOC = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]+)'|\"([^\"\n$`\\]+)\"|\\?([\w.+-]+))(?=[\s;|&)<>]|$)")


class Value(Struct, frozen=True):
    """Something to be put in as words."""

    name: str
    value: object


def fill(template: str, values: Mapping[str, object]) -> str:
    """The command with every `{name}` whose name is among the values replaced. Raises `CommandInvalid`."""
    forbidden = sorted(values.keys() & SH_OPTIONS)
    if forbidden:
        raise CommandInvalid(f"{{{forbidden[0]}}} cannot be a placeholder: it is the name of an option")
    parts: list[str | Value] = []
    used: set[str] = set()
    position = 0
    for match in _NAME.finditer(template):
        name = match[1]
        if name in values and template[match.start() - 1 : match.start()] != "$":
            parts += (template[position : match.start()], Value(name, values[name]))
            used.add(name)
            position = match.end()
    parts.append(template[position:])
    for name in values:
        if name not in used:
            shell = f"; ${{{name}}} is a variable of the shell" if f"${{{name}}}" in template else ""
            raise CommandInvalid(f"{name} is given, but {{{name}}} does not stand in the command{shell}")
    return join(parts)


def fill_interpolated(strings: Sequence[str], interpolations: Iterable[Any]) -> str:
    """The command of a t-string. Raises `CommandInvalid`."""
    parts: list[str | Value] = []
    for text, found in zip(strings, [*interpolations, None], strict=True):
        parts.append(text)
        if found is not None:
            if found.conversion or found.format_spec:
                raise CommandInvalid(f"{{{found.expression}}}: conversions and formats are not for commands")
            parts.append(Value(str(found.expression), found.value))
    return join(parts)


def join(parts: Iterable[str | Value]) -> str:
    """Raises `CommandInvalid`."""
    parts = list(parts)
    reader = _Reader()
    command: list[str] = []
    if evaluated := _EVALUATED.search("".join(part if isinstance(part, str) else "\0" for part in parts)):
        place = evaluated[0].replace("\0", "{…}")
        raise CommandInvalid(f"a value stands in {place!r}, which bash evaluates: use [ … ], or pass it by env=")
    for part in parts:
        if isinstance(part, str):
            reader.read(part)
            command.append(part)
        else:
            reader.check(part.name)
            words = quoted(part.name, part.value)
            reader.read_value()
            command.append(words)
    return "".join(command)


def quoted(name: str, value: object) -> str:
    """One word; of a list several. Raises `CommandInvalid`."""
    if isinstance(value, (list, tuple)):
        return " ".join(shlex.quote(word(name, one)) for one in value)
    return shlex.quote(word(name, value))


def word(name: str, value: object) -> str:
    """A value as text. Raises `CommandInvalid` for what has no plain form."""
    if isinstance(value, (PathLike, str)):
        text = fspath(value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        text = str(value)
    else:
        raise CommandInvalid(f"{name} is {type(value).__name__}: give text, a number, a path or a list of these")
    if not isinstance(text, str):
        raise CommandInvalid(f"{name} is a path of bytes: give text")
    if "\0" in text:
        raise CommandInvalid(f"{name} contains a NUL character, which no command can be given")
    return text


class _Reader:
    """Where in bash's syntax the end of what was read stands."""

    def __init__(self) -> None:
        self._inside: list[str] = []
        """Open constructs, innermost last: `"`, `(`, `{`, `((`; and `'`, `$'`, `` ` ``, `#`, which hide all others."""
        self._cases: list[bool] = [False]
        """Whether a `case` stands in each open `(`: its patterns end with a `)` that closes nothing."""
        self._heredocs: list[tuple[str, bool]] = []
        self._depth = 0
        """How deep the here-documents that wait for their body were announced."""
        self._body: tuple[str, bool] | None = None
        self._line = ""
        self._before = "\n"
        self._lost = ""

    def check(self, name: str) -> None:
        hidden = {
            "'": "inside single quotes", '"': "inside double quotes", "$'": "inside $'…'", "`": "inside backquotes",
            "#": "in a comment", "((": "inside arithmetic", "{": "inside ${…}",
        }  # fmt: skip
        place = next((hidden[one] for one in self._inside if one in hidden), "")
        if self._body or self._before == "<<":
            place = "in a here-document"
        elif self._before == "\\":
            place = "after a backslash"
        elif self._before == "$":
            place = "after a dollar sign"
        if place:
            raise CommandInvalid(
                f"{{{name}}} stands {place}, where quoting does not protect: place it outside, or pass it by env="
            )
        if self._lost:
            raise CommandInvalid(f"{{{name}}} stands behind {self._lost}, where it may not be safe: pass it by env=")

    def read_value(self) -> None:
        """A quoted value stands here: part of a word."""
        self._before = "'"

    def read(self, text: str) -> None:
        position = 0
        while position < len(text):
            position = self._step(text, position)

    def _step(self, text: str, at: int) -> int:
        """Read one token, or one character; returns where the next one begins."""
        if self._body:
            return self._in_body(text, at)
        top = self._inside[-1] if self._inside else ""
        if top in ("'", "$'", "`", "#"):
            return self._in_hidden(top, text, at)
        if top == '"':
            return self._in_double(text, at)
        return self._in_plain(top, text, at)

    def _in_hidden(self, top: str, text: str, at: int) -> int:
        character = text[at]
        if top in ("$'", "`") and character == "\\":
            return self._took("x", at + 2)
        if character == {"'": "'", "$'": "'", "`": "`", "#": "\n"}[top]:
            self._inside.pop()
            if top == "#":
                return at  # the newline itself counts
        return self._took("'", at + 1)

    def _in_double(self, text: str, at: int) -> int:
        character = text[at]
        if character == "\\":
            return self._took("x", at + 2)
        if character == '"':
            self._inside.pop()
        elif character == "`":
            self._inside.append("`")
        elif character == "$":
            return self._dollar(text, at, quoted=True)
        return self._took('"', at + 1)

    def _in_plain(self, top: str, text: str, at: int) -> int:
        character = text[at]
        if character == "\\":
            if at + 1 == len(text):
                return self._took("\\", at + 1)
            # A newline that is escaped is as if it were not there.
            return self._took(self._before if text[at + 1] == "\n" else "x", at + 2)
        if top == "((" and character in "'\"`":
            self._lost = "quotes inside arithmetic"
        if top == "{" and '"' in self._inside and character in "'\"":
            self._lost = "quotes inside ${…} inside double quotes"
        if character in "'\"`":
            self._inside.append(character)
        elif character == "$":
            return self._dollar(text, at, quoted=False)
        elif character == "#" and self._before in _META and top != "((":
            if top == "{":
                self._lost = "a # inside ${…}"
            self._inside.append("#")
        elif character == "(":
            double = text[at + 1 : at + 2] == "("
            self._inside += ["((", "(("] if double else ["((" if top == "((" else "("]
            self._cases += [False] * (1 + double)
            return self._took("(", at + 1 + double)
        elif character == ")":
            self._close_parenthesis(top)
        elif character == "}" and top == "{":
            self._inside.pop()
        elif text.startswith("<<<", at):
            return self._took("<", at + 3)
        elif text.startswith("<<", at) and top != "((":
            return self._announce(top, text, at)
        elif character == "\n":
            self._newline()
        elif _CASE.match(text, at):
            self._cases[-1] = True
        return self._took(character, at + 1)

    def _dollar(self, text: str, at: int, *, quoted: bool) -> int:
        following = text[at + 1 : at + 2]
        if text.startswith("$((", at):
            self._inside += ["((", "(("]
            self._cases += [False, False]
            return self._took("(", at + 3)
        if following in ("(", "{"):
            self._inside.append(following)
            if following == "(":
                self._cases.append(False)
            return self._took("(" if following == "(" else "x", at + 2)
        if following == "[":
            self._lost = "$[…]"
        if following == "'" and not quoted:
            if '"' in self._inside and self._inside[-1] == "{":
                self._lost = "quotes inside ${…} inside double quotes"
            self._inside.append("$'")
            return self._took("'", at + 2)
        if following == "":
            return self._took("$", at + 1)
        return self._took("x", at + (2 if _PARAMETER.match(following) else 1))

    def _close_parenthesis(self, top: str) -> None:
        if top in ("(", "((") and not self._cases[-1]:
            self._inside.pop()
            self._cases.pop()

    def _announce(self, top: str, text: str, at: int) -> int:
        match = _HEREDOC.match(text, at)
        if match is None or top == "{":
            self._lost = "a here-document whose end this reader does not understand"
            return self._took("<<", at + 2)
        if '"' in self._inside or (self._heredocs and self._depth != len(self._inside)):
            self._lost = "a here-document inside another construct"
        self._depth = len(self._inside)
        end = match[2] or match[3] or match[4]
        self._heredocs.append((end, match[1] == "-"))
        return self._took("<<", match.end())

    def _newline(self) -> None:
        if self._heredocs:
            if self._depth != len(self._inside):
                self._lost = "a here-document inside another construct"
            self._body = self._heredocs.pop(0)
            self._line = ""

    def _in_body(self, text: str, at: int) -> int:
        assert self._body
        line, newline, _ = text[at:].partition("\n")
        self._line += line
        if not newline:
            return len(text)
        end, tabs = self._body
        if (self._line.lstrip("\t") if tabs else self._line) == end:
            self._body = self._heredocs.pop(0) if self._heredocs else None
        self._line = ""
        return self._took("\n", at + len(line) + 1)

    def _took(self, last: str, position: int) -> int:
        self._before = last
        return position
