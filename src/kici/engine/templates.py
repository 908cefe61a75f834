"""Templates such as `"deploy-{branch}"`: static text over a closed set of fields, expanded without an agent."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from kici.engine.errors import TemplateError
from kici.engine.events import Event, EventType

FIELDS = frozenset(
    {"branch", "tag", "ref", "sha", "short_sha", "repo", "event", "action", "pr", "actor", "workflow", "job"}
)
_GROUPS = ("matrix.", "input.")
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def placeholders(template: str) -> set[str]:
    """Names between braces. Raises `TemplateError` for a lone brace; `{{` and `}}` stand for the characters."""
    names = set()
    for found in _PLACEHOLDER.finditer(template):
        if found[0] in ("{", "}"):
            raise TemplateError(
                f"template {template!r} has a lone {found[0]!r}: write {found[0] * 2!r} for the character"
            )
        if found[1] is not None:
            names.add(found[1])
    return names


def check(template: str) -> None:
    """Raise `TemplateError` if the template names a field that no event has."""
    for name in sorted(placeholders(template)):
        if name not in FIELDS and not (name.startswith(_GROUPS) and not name.endswith(".")):
            known = ", ".join(sorted(FIELDS))
            raise TemplateError(
                f"template {template!r}: there is no {{{name}}}; there are {known}, matrix.NAME, input.NAME"
            )


def check_cache_key(template: str) -> None:
    """`check` for keys of caches, which know `{os}`, `{arch}` and `{hash:GLOB,GLOB}` too."""
    for name in sorted(placeholders(template)):
        of_files = name.startswith("hash:")
        if of_files and not all(glob.strip() for glob in name.removeprefix("hash:").split(",")):
            raise TemplateError(f"template {template!r}: {{{name}}} names no file: write for example {{hash:uv.lock}}")
        if not of_files and name not in ("os", "arch"):
            check(f"{{{name}}}")


def fields(event: Event, *, workflow: str, job: str, matrix: Mapping[str, str]) -> dict[str, str]:
    """What the fields stand for. An absent one is not in the result."""
    values = {
        "branch": event.branch,
        "tag": event.tag,
        "ref": event.ref,
        "sha": event.sha,
        "short_sha": event.sha[:7],
        "repo": event.repo,
        "event": str(event.type),
        "action": event.action,
        "pr": str(event.pr_number) if event.type is EventType.PULL_REQUEST else "",
        "actor": event.actor,
        "workflow": workflow,
        "job": job,
    }
    values |= {f"matrix.{name}": value for name, value in matrix.items()}
    values |= {f"input.{name}": value for name, value in event.inputs.items()}
    return {name: value for name, value in values.items() if value}


def expand(template: str, values: Mapping[str, str], *, strict: bool = False) -> str:
    """Replace the fields. An absent one becomes empty text, or with `strict` a `TemplateError`."""
    check(template)

    def value(name: str) -> str:
        if strict and name not in values:
            raise TemplateError(f"template {template!r}: this event has no {name}")
        return values.get(name, "")

    return _replaced(template, value)


def expand_cache_key(template: str, values: Mapping[str, str], digest: Callable[[Sequence[str]], str]) -> str:
    """`expand` for keys of caches: `values` has `os` and `arch` too, and `digest` tells that of the files that globs
    find."""
    check_cache_key(template)

    def value(name: str) -> str:
        if name.startswith("hash:"):
            return digest([glob.strip() for glob in name.removeprefix("hash:").split(",")])
        return values.get(name, "")

    return _replaced(template, value)


def _replaced(template: str, value: Callable[[str], str]) -> str:
    return _PLACEHOLDER.sub(lambda found: found[0][0] if found[1] is None else value(found[1]), template)
