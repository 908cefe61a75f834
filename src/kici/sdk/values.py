"""Small things that several definitions take, checked and brought into one form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from kici.nearest import nearest
from kici.sdk.durations import Duration, milliseconds
from kici.sdk.problems import refuse

Pattern: TypeAlias = "str | re.Pattern[str]"
"""A glob (`!` in front excludes), or a regular expression, which must compile under RE2."""

Patterns: TypeAlias = "Pattern | Sequence[Pattern]"

Scalar: TypeAlias = "str | int | bool"
"""Recorded as text: 3 → `3`, True → `true`. No floats: 3.10 would become 3.1."""

MAX_NAME = 200
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def checked_name(subject: str, name: object) -> str:
    """A name of a workflow, job or step: one line of printable text, in any script."""
    if not isinstance(name, str):
        refuse(subject, f"its name is {name!r}, not text")
        return "?"
    if not name.strip() or name != name.strip() or not name.isprintable() or len(name) > MAX_NAME:
        refuse(
            subject,
            f"{name!r} cannot be its name: write 1 to {MAX_NAME} printable characters without blanks around them",
        )
        return "?"
    return name


def checked_duration(subject: str, option: str, value: Duration | None, default: int | None) -> int | None:
    """Milliseconds; `default` for None."""
    if value is None:
        return default
    try:
        return milliseconds(value)
    except ValueError as error:
        refuse(subject, f"{option}: {error}")
        return default


def checked_flag(subject: str, option: str, value: object) -> bool:
    if not isinstance(value, bool):
        refuse(subject, f"{option} is {value!r}: write True or False")
    return bool(value)


def checked_template(subject: str, option: str, value: object) -> str | None:
    """Text with placeholders; which ones exist is checked by the compiler."""
    if value is None or isinstance(value, str):
        return value
    if callable(value):
        refuse(subject, f'{option}: a function here is not there yet: write a template such as "deploy-{{branch}}"')
    else:
        refuse(subject, f"{option} is {value!r}: write text")
    return None


def checked_description(subject: str, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    refuse(subject, f"description is {value!r}: write text")
    return None


def checked_env(subject: str, env: object) -> dict[str, str]:
    """Environment variables, whose values are templates."""
    if env is None:
        return {}
    if not isinstance(env, Mapping):
        if callable(env):
            refuse(subject, 'env: a function here is not there yet: write {"NAME": "template"}')
        else:
            refuse(subject, f'env is {env!r}: write {{"NAME": "value"}}')
        return {}
    found = {}
    for name, value in env.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            refuse(subject, f"env: {name!r} cannot be the name of a variable: write letters, digits and _")
        else:
            found[name] = checked_scalar(subject, f"env {name}", value)
    return found


def checked_directory(subject: str, option: str, value: object) -> str | None:
    """A directory below the checkout, as a relative path with `/`."""
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        refuse(subject, f'{option} is {value!r}: write a directory of the checkout, such as "packages/app"')
        return None
    if value.startswith(("/", "~")) or "\\" in value or ".." in value.split("/"):
        refuse(subject, f"{option} is {value!r}: write a path below the checkout, with / and without ..")
        return None
    return value


def checked_scalar(subject: str, option: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int)):
        return str(value)
    if isinstance(value, float):
        refuse(
            subject, f'{option}: {value!r} is a number with a point: write it as text, "{value}", to keep its digits'
        )
    else:
        refuse(subject, f"{option}: {value!r} is neither text nor a whole number")
    return str(value)


def checked_patterns(subject: str, option: str, value: object) -> tuple[Pattern, ...]:
    """One pattern or several."""
    found: list[Pattern] = []
    for pattern in _several(value):
        usable = isinstance(pattern.pattern, str) if isinstance(pattern, re.Pattern) else _is_text(pattern)
        if usable:
            found.append(pattern)  # type: ignore[arg-type]
        else:
            refuse(subject, f"{option}: {pattern!r} is no pattern: write a glob as text, or re.compile(…)")
    return tuple(found)


def checked_globs(subject: str, option: str, value: object) -> tuple[str, ...]:
    """As `checked_patterns`, without regular expressions."""
    found: list[str] = []
    for pattern in checked_patterns(subject, option, value):
        if isinstance(pattern, str):
            found.append(pattern)
        else:
            refuse(subject, f"{option}: {pattern.pattern!r} is a regular expression; this takes globs: src/**")
    return tuple(found)


def checked_words(subject: str, option: str, value: object) -> tuple[str, ...]:
    """One word or several, compared as they stand."""
    found = []
    for word in _several(value):
        if isinstance(word, str) and word.strip():
            found.append(word)
        else:
            refuse(subject, f"{option}: {word!r} is not text")
    return tuple(found)


def one_of(subject: str, option: str, value: Any, allowed: Iterable[str]) -> bool:
    """Whether the value is one of these; if not it is refused with the nearest one."""
    known = list(allowed)
    if value in known:
        return True
    refuse(subject, f"{option}: there is no {value!r}{nearest(value, known)}; it is one of {', '.join(known)}")
    return False


def _is_text(pattern: object) -> bool:
    return isinstance(pattern, str) and bool(pattern.removeprefix("!").strip())


def _several(value: object) -> Iterable[object]:
    if value is None:
        return ()
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    return (value,)
