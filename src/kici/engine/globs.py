"""Globs, as regular expressions that run in linear time.

A pattern comes from a lock file, so from anybody who may push: an engine that backtracks would let them stop the
pipeline with `*a*a*a*b`. So a glob is translated to RE2. `*` and `?` stop at `/`, `**` crosses it as a whole segment,
`{a,b}`, `[a-z]`, `@(a|b)`, `?( )`, `*( )`, `+( )` work, dotfiles match like others, case counts, the whole string must
match.
`!(…)` has no form without backtracking: wcmatch matches it, and it may stand beside few other wildcards.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from kici.engine.errors import PatternError

if TYPE_CHECKING:
    import re2

# bracex, re2 and wcmatch are imported where a pattern needs them: most are plain names, and every program starts with
# this module.

MAX_LENGTH = 512
MAX_BRACES = 100
"""Alternatives that the braces of one pattern may expand to."""
MAX_WILDCARDS_BESIDE_NEGATION = 3
_GROUP_END = {"@": ")", "?": ")?", "*": ")*", "+": ")+"}


def is_glob(text: str) -> bool:
    """Whether the text has a character that a glob would not take literally."""
    return any(character in "*?[]{}\\" for character in text) or any(f"{kind}(" in text for kind in "@!+")


@lru_cache(maxsize=4096)
def compile_glob(pattern: str) -> Callable[[str], bool]:
    """A function that tells whether a string matches. Raises `PatternError` for what is no glob."""
    if not pattern or len(pattern) > MAX_LENGTH:
        raise PatternError(f"a glob has 1 to {MAX_LENGTH} characters, this one has {len(pattern)}")
    if not is_glob(pattern):
        return pattern.__eq__
    import bracex

    try:
        alternatives = bracex.expand(pattern, keep_escapes=True, limit=MAX_BRACES)
    except bracex.ExpansionLimitException as error:
        raise PatternError(f"glob {pattern!r} expands to more than {MAX_BRACES} alternatives") from error
    if "!(" in pattern:
        if pattern.count("*") + pattern.count("+(") > MAX_WILDCARDS_BESIDE_NEGATION:
            raise PatternError(
                f"glob {pattern!r} has `!(…)` and more than {MAX_WILDCARDS_BESIDE_NEGATION} wildcards:"
                " write the exclusion as a pattern of its own, with `!` in front"
            )
        from wcmatch import glob

        flags = glob.GLOBSTAR | glob.EXTGLOB | glob.FORCEUNIX | glob.CASE | glob.DOTGLOB
        matcher = glob.compile(alternatives, flags=flags)
        return lambda value: bool(matcher.match(value))
    regex = compile_regex("|".join(f"(?:{_translate(alternative)})" for alternative in alternatives), of=pattern)
    return lambda value: regex.fullmatch(value) is not None


def compile_regex(regex: str, *, of: str = "") -> re2._Regexp:
    """RE2, or `PatternError` with RE2's own reason."""
    import re2

    quiet = re2.Options()
    quiet.log_errors = False
    try:
        return re2.compile(regex, quiet)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error.args[0]
        raise PatternError(
            f"{of or regex!r} cannot be read ({reason}): RE2 has no look-around and no back-references"
        ) from error


def _translate(glob: str) -> str:
    segments = _split(glob)
    out = ""
    for index, segment in enumerate(segments):
        last = index == len(segments) - 1
        if segment == "**":
            if last:
                out += ".*" if index == 0 else ".+"
            elif not out.endswith("(?:.*/)?"):
                out += "(?:.*/)?"
            continue
        out += "[^/]+" if segment and not segment.strip("*") else _segment(segment, glob)
        if not last:
            out += "/"
    return f"(?s:{out})"


def _split(glob: str) -> list[str]:
    """At `/`, but not inside a group or a class."""
    segments, depth, start, index = [], 0, 0, 0
    while index < len(glob):
        character = glob[index]
        if character == "\\":
            index += 1
        elif character == "(" and index and glob[index - 1] in "@?*+":
            depth += 1
        elif character == ")" and depth:
            depth -= 1
        elif character == "/" and not depth:
            segments.append(glob[start:index])
            start = index + 1
        index += 1
    return [*segments, glob[start:]]


def _segment(segment: str, glob: str) -> str:
    out, groups, index = "", [], 0
    while index < len(segment):
        character = segment[index]
        following = segment[index + 1 : index + 2]
        if character in "@?*+" and following == "(":
            out += "(?:"
            groups.append(_GROUP_END[character])
            index += 2
            continue
        if character == "*":
            out += "[^/]*"
        elif character == "?":
            out += "[^/]"
        elif character == "[":
            end = segment.find("]", index + 2 if following not in ("!", "^") else index + 3)
            if end < 0:
                raise PatternError(f"glob {glob!r} has a `[` without its `]`: write `\\[` for the character")
            body = segment[index + 1 : end]
            negated = body[0] in "!^"
            body = (
                (body[1:] if negated else body)
                .replace("\\", "\\\\")
                .replace("[", "\\[")
                .replace("]", "\\]")
                .replace("^", "\\^")
            )
            out += f"[^/{body}]" if negated else f"[{body}]"
            index = end
        elif character == "\\" and following:
            out += literal(following)
            index += 1
        elif character == "|" and groups:
            out += "|"
        elif character == ")" and groups:
            out += groups.pop()
        else:
            out += literal(character)
        index += 1
    if groups:
        raise PatternError(f"glob {glob!r} has a group without its `)`")
    return out


def literal(character: str) -> str:
    """For RE2, which takes a backslash before every character that is no letter, digit or `_`, and is ASCII."""
    return character if character.isalnum() or character == "_" or not character.isascii() else f"\\{character}"
