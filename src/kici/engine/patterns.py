"""Lists of patterns, as triggers and labels have them: any of these, and none of those with `!` in front."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kici.engine.globs import compile_glob, compile_regex, literal
from kici.engine.lockfile import Pattern, Regex


def check(pattern: Pattern) -> None:
    """Raise `PatternError` if the pattern cannot be used."""
    if isinstance(pattern, Regex):
        compile_regex(pattern.regex)
    else:
        compile_glob(pattern.removeprefix("!") if _excludes(pattern) else pattern)


def matches(patterns: Sequence[Pattern], value: str) -> bool:
    """Whether no `!` pattern matches, and some other one does; a list without others takes all that is left.

    A glob must match the whole value; a regex is searched for. An empty list matches.
    """
    positive = [pattern for pattern in patterns if not _excludes(pattern)]
    if any(_one(pattern, value) for pattern in patterns if _excludes(pattern)):
        return False
    return not positive or any(_one(pattern, value) for pattern in positive)


def paths_match(patterns: Sequence[str], changed: Iterable[str]) -> bool:
    """Whether some changed file matches the list. An empty list matches, also when nothing changed."""
    return not patterns or any(matches(patterns, path) for path in changed)


def text_matches(patterns: Sequence[Pattern], text: str) -> bool:
    """As `matches`, for a text that somebody wrote.

    A pattern without `*` and `?` is looked for anywhere; with them it must match the whole first line, without the
    blanks around it, and `*` stands for any characters. A regex is searched for in all of it.
    """
    positive = [pattern for pattern in patterns if not _excludes(pattern)]
    if any(_in_text(pattern, text) for pattern in patterns if _excludes(pattern)):
        return False
    return not positive or any(_in_text(pattern, text) for pattern in positive)


def show(pattern: Pattern) -> str:
    """As people read it: `main`, `!dev`, `/^v\\d/`."""
    return f"/{pattern.regex}/" if isinstance(pattern, Regex) else pattern


def _excludes(pattern: Pattern) -> bool:
    return isinstance(pattern, str) and pattern.startswith("!") and not pattern.startswith("!(")


def _one(pattern: Pattern, value: str) -> bool:
    if isinstance(pattern, Regex):
        return compile_regex(pattern.regex).search(value) is not None
    return compile_glob(pattern.removeprefix("!") if _excludes(pattern) else pattern)(value)


def _in_text(pattern: Pattern, text: str) -> bool:
    if isinstance(pattern, Regex):
        return compile_regex(pattern.regex).search(text) is not None
    wanted = pattern.removeprefix("!")
    if not any(character in wanted for character in "*?"):
        return wanted in text
    first_line = text.strip().partition("\n")[0].strip()
    written = "".join({"*": ".*", "?": "."}.get(one) or literal(one) for one in wanted)
    return compile_regex(f"(?s:{written})", of=wanted).fullmatch(first_line) is not None
